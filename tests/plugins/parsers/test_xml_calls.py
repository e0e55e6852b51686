"""Calls with tags around arguments: samples of every format, in every two pieces."""

from hotshoe_parsers.xml_calls import FORMATS


def test_samples(check_sample, sample) -> None:
    check_sample(FORMATS[sample.get("format", "qwen3_xml")], sample)
