"""The decoder built from a hand-made specification: names, ties, quantization, sharing, logits."""

from dataclasses import replace

import pytest
import torch

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext, OnlineFormat, Rotary, Rotation, Storage
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, QuantSpec, Selector
from hotshoe_models import decoder
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import DecoderSpec, LayerSpec, WeightNames

SLOW, FAST = Rotation((0.1, 0.01)), Rotation((1.0, 0.5))
SPEC = DecoderSpec(
    vocab_size=40,
    hidden_size=16,
    intermediate_size=24,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    layers=(LayerSpec(FAST), LayerSpec(SLOW, window=3), LayerSpec(FAST), LayerSpec(None)),
    activation="silu",
    norm_eps=1e-6,
    attention_scale=0.5,
    tied=False,
)
STACKED = WeightNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))
PLAIN_LAYER = {
    "input_layernorm.weight": (16,),
    "self_attn.q_proj.weight": (16, 16),
    "self_attn.k_proj.weight": (8, 16),
    "self_attn.v_proj.weight": (8, 16),
    "self_attn.o_proj.weight": (16, 16),
    "post_attention_layernorm.weight": (16,),
    "mlp.gate_proj.weight": (24, 16),
    "mlp.up_proj.weight": (24, 16),
    "mlp.down_proj.weight": (16, 24),
}
OUTER = {
    "model.embed_tokens.weight": (40, 16),
    "model.norm.weight": (16,),
    "lm_head.weight": (40, 16),
}


@pytest.fixture
def ctx():
    selector = Selector(SLOTS, [], DeviceFacts("plain", "cpu", "", "", 1 << 30, 1))
    return BuildContext(selector, "float32", "float32", 4, 32)


def shapes(ctx):
    return {name: weight.shape for name, weight in ctx.weights.expected.items()}


def feed(ctx, **given):
    for name, weight in ctx.weights.expected.items():
        ctx.weights.feed(name, given.get(name, torch.randn(weight.shape)))
    ctx.weights.check_complete()


def test_checkpoint_names_and_shapes(ctx):
    DenseDecoder(SPEC, ctx)
    layers = {f"model.layers.{i}.{n}": s for i in range(4) for n, s in PLAIN_LAYER.items()}
    assert shapes(ctx) == OUTER | layers


def test_stacked_checkpoints_hold_the_same_rows(ctx):
    DenseDecoder(replace(SPEC, names=STACKED), ctx)
    found = shapes(ctx)
    assert found["model.layers.3.self_attn.qkv_proj.weight"] == (32, 16)
    assert found["model.layers.3.mlp.gate_up_proj.weight"] == (48, 16)
    assert not any("q_proj" in name or "up_proj.w" in name.split("gate_")[0] for name in found)


@pytest.mark.parametrize(
    ("option", "biased"),
    [
        ("qkv_bias", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}),
        ("o_bias", {"self_attn.o_proj"}),
        ("mlp_bias", {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}),
    ],
)
def test_biases(ctx, option, biased):
    DenseDecoder(replace(SPEC, **{option: True}), ctx)
    names = {n for n in shapes(ctx) if n.endswith(".bias")}
    assert names == {f"model.layers.{i}.{n}.bias" for i in range(4) for n in biased}


def test_a_tied_output_matrix_is_not_read_twice(ctx):
    model = DenseDecoder(replace(SPEC, tied=True), ctx)
    assert "lm_head.weight" not in shapes(ctx)
    assert not ctx.weights.wants("lm_head.weight")
    table = torch.randn(40, 16)
    feed(ctx, **{"model.embed_tokens.weight": table})
    hidden = torch.randn(3, 16)
    torch.testing.assert_close(model.head(hidden, "generate"), hidden @ table.T)


def test_an_untied_output_matrix_is_its_own(ctx):
    model = DenseDecoder(SPEC, ctx)
    table = torch.randn(40, 16)
    feed(ctx, **{"lm_head.weight": table})
    hidden = torch.randn(3, 16)
    torch.testing.assert_close(model.head(hidden, "generate"), hidden @ table.T)


def test_buffers_of_older_checkpoints_are_passed_over(ctx):
    DenseDecoder(SPEC, ctx)
    assert not ctx.weights.wants("model.layers.0.self_attn.rotary_emb.inv_freq")
    with pytest.raises(CheckpointError, match=r"model\.layers\.4"):
        ctx.weights.wants("model.layers.4.self_attn.q_proj.weight")


def test_logits_are_divided_and_capped_into_a_new_tensor(ctx):
    model = DenseDecoder(replace(SPEC, logits_divisor=4.0, logits_softcap=1.5), ctx)
    table = torch.randn(40, 16)
    feed(ctx, **{"lm_head.weight": table})
    hidden = torch.randn(3, 16)
    first = model.head(hidden, "generate")
    torch.testing.assert_close(first, 1.5 * torch.tanh(hidden @ table.T / 4.0 / 1.5))
    kept = first.clone()
    second = model.head(torch.randn(3, 16), "generate")
    assert torch.equal(first, kept) and not torch.equal(first, second)
    assert first.dtype == torch.float32


EVERYTHING = OnlineFormat(
    Storage(QuantSpec("int8", "channel", online=True), QuantSpec("int8", "token", dynamic=True))
)


@pytest.mark.parametrize("kept", [{"lm_head"}, {"lm_head", "down"}, set()])
def test_the_specification_says_what_stays_unquantized(ctx, kept):
    ctx.format = EVERYTHING
    DenseDecoder(replace(SPEC, unquantized=frozenset(kept)), ctx)
    linear = [spec for slot, spec in ctx.selector.decisions if slot == "linear"]
    plain = {(spec.out_features, spec.in_features) for spec in linear if spec.weight is None}
    assert plain == {{"lm_head": (40, 16), "down": (16, 24)}[name] for name in kept}


def test_equal_rotations_share_one_table(ctx, monkeypatch):
    built = []

    class Counting(Rotary):
        @classmethod
        def build(cls, rotation, num_positions, device, memory_bytes):
            built.append((rotation, num_positions))
            return Rotary.build(rotation, num_positions, device, memory_bytes)

    monkeypatch.setattr(decoder, "Rotary", Counting)
    DenseDecoder(SPEC, ctx)
    assert sorted(built, key=lambda b: b[0].inv_freq) == [(SLOW, 32), (FAST, 32)]


def test_layers_differ_as_the_specification_says(ctx):
    DenseDecoder(replace(SPEC, attention_softcap=9.0), ctx)
    found = [(a.spec.window, a.spec.softcap, a.spec.scale) for a in ctx.cache_layers]
    assert found == [(w, 9.0, 0.5) for w in (None, 3, None, None)]
    rotary_dims = {s.rotary_dim for slot, s in ctx.selector.decisions if slot == "rotary_and_cache"}
    assert rotary_dims == {4, 0}
