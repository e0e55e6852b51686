"""Solar Open: samples, in every two pieces."""

from hotshoe_parsers.solar import FORMAT


def test_samples(check_sample, sample) -> None:
    check_sample(FORMAT, sample)
