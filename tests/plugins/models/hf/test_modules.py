"""Which weights are asked for, and by whom."""

import torch
from torch import nn

from hotshoe_models.hf import build
from hotshoe_models.hf.modules import ROUTERS, expect_rest


def test_slots_take_matrices_and_modules_the_rest(described, context) -> None:
    ctx = context()
    build(described("HeliumForCausalLM", tie_word_embeddings=False), ctx)
    slots = {
        name: {p.holder.slot for p in ctx.weights.where(name)} for name in ctx.weights.expected
    }
    assert slots["model.layers.0.self_attn.q_proj.weight"] == {"linear"}
    assert slots["lm_head.weight"] == {"linear"}
    assert slots["model.embed_tokens.weight"] == {"embedding"}
    assert slots["model.layers.1.input_layernorm.weight"] == {"module"}


def test_a_tied_table_is_the_output_matrix(described, context) -> None:
    ctx = context()
    build(described("HeliumForCausalLM", tie_word_embeddings=True), ctx)
    found = {place.holder.slot for place in ctx.weights.where("model.embed_tokens.weight")}
    assert found == {"embedding", "linear"}
    assert not ctx.weights.wants("lm_head.weight")


def test_values_of_the_rest_are_replaced_in_place(context) -> None:
    ctx, norm = context(), nn.LayerNorm(3)
    expect_rest(ctx, norm, frozenset({"bias"}))
    for value in (2.0, 5.0):
        ctx.weights.feed("weight", torch.full((3,), value))
        at = norm.weight.data_ptr()
    assert torch.equal(norm.weight, torch.full((3,), 5.0))
    ctx.weights.feed("weight", torch.ones(3))
    assert norm.weight.data_ptr() == at
    ctx.weights.feed("bias", torch.zeros(3, dtype=torch.bfloat16))
    assert norm.bias.dtype == torch.float32


def test_routers_by_name() -> None:
    routers = ["model.layers.0.mlp.gate", "layers.1.block.router.layer", "mlp.shared_expert_gate"]
    assert all(ROUTERS.search(name) for name in routers)
    assert not any(ROUTERS.search(name) for name in ("mlp.gate_proj", "mlp.gate_up_proj"))


def test_a_bias_that_files_have_by_another_name(described, context) -> None:
    """BERT's head calls the bias of its output matrix its own."""
    ctx = context()
    build(described("BertLMHeadModel", is_decoder=True), ctx)
    assert ctx.weights.wants(ctx.weights.known_as("cls.predictions.bias"))
    assert "cls.predictions.bias" not in ctx.weights.expected
