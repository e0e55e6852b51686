"""Calls as JSON between marks: samples of every format, in every two pieces."""

from hotshoe_parsers.json_calls import FORMATS


def test_samples(check_sample, sample) -> None:
    check_sample(FORMATS[sample.get("format", "hermes")], sample)
