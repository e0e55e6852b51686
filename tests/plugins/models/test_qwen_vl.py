"""Text parts of Qwen that sees: the rotation of text, and stacked experts as published."""

import pytest

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


@pytest.fixture
def build_text(build_family, monkeypatch):
    """Build a class that makes embeddings alone, whose name has no use in the end."""
    from tests.plugins.models import conftest

    def build(kind: str, **values):
        monkeypatch.setitem(conftest.ARCHITECTURE, kind, f"{kind}TextModel")
        return build_family(kind, **values)

    return build


def test_coordinates_of_text_are_one(build_text) -> None:
    rope = {"type": "mrope", "mrope_section": [2, 3, 3]}
    ctx = build_text("Qwen2VL", rope_scaling=rope, rope_theta=5000.0)
    assert {spec.rotary_dim for slot, spec in ctx.selector.decisions if "rotary" in slot} == {16}
    assert any(name.endswith("q_proj.bias") for name in ctx.weights.expected)


def test_experts_are_stacked_and_transposed(build_text) -> None:
    expected = build_text("Qwen3VLMoe", **EXPERTS).weights.expected
    prefix = "model.layers.0.mlp.experts."
    assert expected[f"{prefix}gate_up_proj"].shape == (4, 128, 48)
    assert expected[f"{prefix}down_proj"].shape == (4, 24, 128)
