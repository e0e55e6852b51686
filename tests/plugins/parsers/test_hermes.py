"""Hermes: samples, in every two pieces."""

from hotshoe_parsers.hermes import FORMAT


def test_samples(check_sample, sample) -> None:
    check_sample(FORMAT, sample)
