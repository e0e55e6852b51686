"""Layers as one question: which have the form, and steps in which some are whole."""

from dataclasses import replace

import pytest
import torch

from hotshoe.layers import BuildContext, ForwardBatch, OnlineFormat, Rotation, Storage, assign_views
from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    SLOTS,
    CacheView,
    Candidate,
    QuantSpec,
    Selector,
    StepShape,
    accept,
    refuse,
)
from hotshoe.slots.reference.decoder_layer import DecoderLayer
from hotshoe.types import CacheGroup, CacheLayout
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import DecoderSpec, LayerSpec, WeightNames
from hotshoe_models.whole import Whole, layer_parts

FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)
ROTATION = Rotation((1.0, 0.1, 0.01, 0.001))
PLAIN = LayerSpec(ROTATION)
NAMES = WeightNames()
INT8 = QuantSpec("int8", "channel", online=True)


def decoder(*layers: LayerSpec, **changes: object) -> DecoderSpec:
    sizes = {"vocab_size": 32, "hidden_size": 24, "intermediate_size": 40, "head_dim": 8}
    heads = {"num_heads": 4, "num_kv_heads": 2, "norm_eps": 1e-5, "tied": True}
    return DecoderSpec(**{**sizes, **heads, "layers": layers, **changes})


def context(*whole: object, **forced: str) -> BuildContext:
    """Return a context in which layers of these windows are served whole."""

    def supports(spec, facts):
        return accept(5) if spec.attention.window in whole else refuse("another window")

    features = frozenset({"window"})
    mine = Candidate("decoder_layer", "mine", supports, DecoderLayer, features=features)
    return BuildContext(Selector(SLOTS, [mine], FACTS, forced), "float32", "float32", 4, 32)


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "layer"},
        {"gated": False},
        {"parallel": True},
        {"gated_attention": True},
        {"value_norm": True},
        {"residual_scale": 0.5},
        {"gate_scale": 2.0},
        {"gate_limits": (7.0, 1.7, 1.0)},
        {"names": replace(NAMES, post_mlp_norm="after")},
        {"names": replace(NAMES, input_norm=None)},
        {"names": replace(NAMES, qk_norm=("q", "k"), wide_qk_norm=True)},
        {"names": replace(NAMES, qk_norm=("q", "k"), late_qk_norm=True)},
        {"layers": (replace(PLAIN, chunk=8),)},
        {"layers": (replace(PLAIN, unit_qk=True),)},
        {"layers": (replace(PLAIN, sparsity=0.5),)},
        {"layers": (PLAIN, replace(PLAIN, shares=0))},
        {"layers": (replace(PLAIN, keys_as_values=True),)},
    ],
)
def test_other_forms_are_no_question(changes) -> None:
    spec = decoder(PLAIN)
    assert layer_parts(spec, context(), 0, {ROTATION: None}) is not None
    assert layer_parts(replace(spec, **changes), context(), 0, {ROTATION: None}) is None


def test_what_is_asked() -> None:
    names = replace(NAMES, qk_norm=("q", "k"), sinks="sinks")
    spec = decoder(PLAIN, replace(PLAIN, rotation=None, window=6), names=names, qkv_bias=True)
    ctx = replace(context(), format=OnlineFormat(Storage(INT8)), kv_dtype="int8")
    parts = layer_parts(spec, ctx, 1, {})
    asked = parts.spec
    assert (asked.attention.window, asked.attention.sinks, asked.rotary_dim) == (6, True, 0)
    assert (asked.attention.kv_scales, asked.qkv.bias, asked.o.bias) == ("token", True, False)
    assert (asked.qkv.weight.format, asked.qk_norm_eps) == ("int8", 1e-5)
    assert parts.sinks == "model.layers.1.sinks"
    assert parts.norms["q_norm"] == "model.layers.1.q"


def run(ctx: BuildContext, spec: DecoderSpec) -> torch.Tensor:
    """Return logits of a prompt of 9 tokens, of which two are wanted."""
    model = DenseDecoder(spec, ctx)
    source = torch.Generator().manual_seed(1)
    for name, expected in sorted(ctx.weights.expected.items()):
        ctx.weights.feed(name, torch.randn(expected.shape, generator=source))
    ctx.weights.check_complete()
    groups = tuple(
        CacheGroup(layer.cache_spec, (i,), pool=0) for i, layer in enumerate(ctx.cache_layers)
    )
    plans = assign_views(ctx.cache_layers, CacheLayout(groups, ()))
    for layer in ctx.cache_layers:
        layer.allocate_cache(4)
    ids = torch.arange(9, dtype=torch.int32)
    lengths = torch.tensor([9], dtype=torch.int32)
    shape = StepShape(1, torch.tensor([0, 9], dtype=torch.int32), lengths, 9, 9)
    views = [CacheView(torch.tensor([[2, 0, 1]], dtype=torch.int32), 4 * (ids // 4)) for _ in plans]
    for view, plan in zip(views, plans, strict=True):
        view.slot_mapping = view.block_table[0][(ids // 4).long()] * 4 + ids % 4
        view.prepared = plan.prepare(shape, view)
    batch = ForwardBatch(ids, shape, views, torch.tensor([3, 8]))
    return model.head(model.forward(model.embed(ids), batch), "generate")


@pytest.mark.parametrize("whole", [(6,), (None,), (6, None)])
def test_whole_layers_among_composed_ones(whole) -> None:
    narrow = replace(PLAIN, window=6)
    for layers in ((PLAIN, narrow, PLAIN), (narrow, narrow, PLAIN), (PLAIN, PLAIN, narrow)):
        spec, ctx = decoder(*layers), context(*whole)
        torch.testing.assert_close(run(ctx, spec), run(context(), spec))
        served = [type(layer) is Whole for layer in DenseDecoder(spec, context(*whole)).layers]
        assert served == [layer.window in whole for layer in layers]


def test_all_layers_in_one_call() -> None:
    spec = decoder(PLAIN, replace(PLAIN, window=6), PLAIN)
    ctx = context(model_step="reference")
    torch.testing.assert_close(run(ctx, spec), run(context(), spec))
    [decision] = [d for d in ctx.selector.decisions.values() if d.slot == "model_step"]
    assert [count for _, count in decision.spec.layers] == [1, 1, 1]
    assert not any(d.slot == "attention" for d in ctx.selector.decisions.values())
