"""Values of Phi-3.5-MoE's files that cannot be served are refused by their keys."""

import pytest

from hotshoe.errors import CheckpointError

EXPERTS = {"num_local_experts": 4}
SCALING = {
    "rope_type": "longrope",
    "short_mscale": 1.25,
    "long_mscale": 1.5,
    "original_max_position_embeddings": 16,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
}


def scaled(**changes):
    """Return config.json's values of a rotation; None leaves one out."""
    values = {name: value for name, value in (SCALING | changes).items() if value is not None}
    return {"rope_parameters": values}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_experts_per_tok": 3}, "num_experts_per_tok is 3.*two experts"),
        (scaled(short_mscale=None), "lacks.*short_mscale"),
        (scaled(long_mscale=True), "long_mscale is True.*positive number"),
        (scaled(original_max_position_embeddings=None), "lacks.*original_max_position_embeddings"),
        (scaled(original_max_position_embeddings=True), "original_max_position_embeddings.*True"),
        (scaled(original_max_position_embeddings=16.0), "original_max_position_embeddings.*16.0"),
    ],
)
def test_refusals(values, message, build_family) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("Phimoe", **EXPERTS, **values)


def test_the_factor_belongs_to_the_length(build_family) -> None:
    """Tables of short and long texts differ by their factors, beside their frequencies."""
    for length, factor in ((16, 1.25), (17, 1.5)):
        ctx = build_family("Phimoe", max_model_len=length, **EXPERTS, **scaled())
        table = ctx.cache_layers[0]._cos_sin
        assert table[0, 0].item() == pytest.approx(factor)


def test_the_original_length_may_lie_beside_the_rotation(build_family) -> None:
    beside = scaled(original_max_position_embeddings=None) | {
        "original_max_position_embeddings": 16
    }
    ctx = build_family("Phimoe", max_model_len=17, **EXPERTS, **beside)
    assert ctx.cache_layers[0]._cos_sin[0, 0].item() == pytest.approx(1.5)


def test_published_files_spell_the_name_otherwise(build_family) -> None:
    """One description serves both names: microsoft's files and those that transformers writes."""
    published, written = (build_family(name, **EXPERTS) for name in ("PhiMoE", "Phimoe"))
    assert set(published.weights.expected) == set(written.weights.expected)
