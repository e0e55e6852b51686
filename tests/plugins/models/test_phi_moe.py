"""Values of Phi-3.5-MoE's files that cannot be served are refused by their keys."""

import pytest

from hotshoe.errors import CheckpointError

EXPERTS = {"num_local_experts": 4}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_experts_per_tok": 3}, "num_experts_per_tok is 3.*two experts"),
        ({"rope_parameters": {"rope_type": "longrope", "long_mscale": 1.2}}, "short_mscale"),
    ],
)
def test_refusals(values, message, build_family) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("Phimoe", **EXPERTS, **values)


def test_the_factor_belongs_to_the_length(build_family) -> None:
    """Tables of short and long texts differ by their factors, beside their frequencies."""
    scaling = {
        "rope_type": "longrope",
        "short_mscale": 1.25,
        "long_mscale": 1.5,
        "original_max_position_embeddings": 16,
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
    }
    for length, factor in ((16, 1.25), (17, 1.5)):
        ctx = build_family("Phimoe", max_model_len=length, **EXPERTS, rope_parameters=scaling)
        table = ctx.cache_layers[0]._cos_sin
        assert table[0, 0].item() == pytest.approx(factor)
