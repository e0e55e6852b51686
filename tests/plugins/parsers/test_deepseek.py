"""DeepSeek: samples, in every two pieces."""

from hotshoe_parsers.deepseek import V3


def test_samples(check_sample, sample) -> None:
    check_sample(V3, sample)
