"""Qwen3-Coder: samples, in every two pieces."""

from hotshoe_parsers.qwen_xml import FORMAT


def test_samples(check_sample, sample) -> None:
    check_sample(FORMAT, sample)
