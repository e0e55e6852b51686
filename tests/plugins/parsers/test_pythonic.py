"""Pythonic: samples, in every two pieces."""

from hotshoe_parsers.pythonic import FORMAT, OLMO3

FORMATS = {FORMAT.name: FORMAT, OLMO3.name: OLMO3}


def test_samples(check_sample, sample) -> None:
    check_sample(FORMATS[sample.get("format", "pythonic")], sample)
