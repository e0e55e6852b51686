"""Seed-OSS: how many weights there are, and where biases are."""

import math


def test_published_parameters(build_family) -> None:
    """36B, as config.json describes it."""
    ctx = build_family("SeedOss", sized=False, hidden_size=5120)
    found = ctx.weights.expected.values()
    assert sum(math.prod(weight.shape) for weight in found) == 36_151_104_512


def test_biases(build_family) -> None:
    found = {n.split(".")[-2] for n in build_family("SeedOss").weights.expected if "bias" in n}
    assert found == {"q_proj", "k_proj", "v_proj"}
