"""The first pass finds heads, scale, window and cap of each module that attends."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from hotshoe.errors import CheckpointError
from hotshoe.layers import OnlineFormat
from hotshoe_models.hf import build
from hotshoe_models.hf.attention import Run, attend, build_layers


def test_specifications_are_those_of_the_modules(described, context) -> None:
    ctx = context()
    kinds = ["sliding_attention", "full_attention"]
    values = {"head_dim": 16, "sliding_window": 6, "layer_types": kinds}
    caps = {"attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 4}
    build(described("Gemma2ForCausalLM", **values, **caps), ctx)
    first, second = (layer.spec for layer in ctx.cache_layers)
    assert (first.num_heads, first.num_kv_heads, first.head_dim) == (4, 2, 16)
    assert (first.window, second.window) == (6, None)
    assert (first.scale, first.softcap) == (0.5, 3.0)


def test_a_cache_takes_the_scales_of_the_checkpoint(described, context) -> None:
    stored = OnlineFormat()
    stored.kv_scales = ("k_scale", "v_scale")
    ctx = replace(context(format=stored), kv_dtype="float8_e4m3fn")
    build(described("HeliumForCausalLM", head_dim=8), ctx)
    assert [layer.spec.kv_scales for layer in ctx.cache_layers] == ["tensor", "tensor"]
    assert {f"model.layers.{i}.self_attn.{part}_scale" for i in (0, 1) for part in "kv"} <= set(
        ctx.weights.expected
    )


class Attending(nn.Module):
    """Calls the interface as modules of transformers do."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.hotshoe_run = run

    def forward(self, value_dim: int = 8, **options) -> torch.Tensor:
        q, k = torch.zeros(1, 4, 2, 8), torch.zeros(1, 2, 2, 8)
        v = torch.zeros(1, 2, 2, value_dim)
        return attend(self, q, k, v, options.pop("attention_mask", None), **options)[0]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"is_causal": False}, "is not causal"),
        ({"position_bias": torch.zeros(1)}, "takes position_bias"),
        ({"attention_mask": torch.zeros(1)}, "takes attention_mask"),
        ({"value_dim": 9}, "has values of 9, wider than its keys"),
        ({"s_aux": torch.zeros(4)}, "has sinks that are no weight of its own"),
    ],
)
def test_what_no_layer_computes_is_refused(options, reason, context) -> None:
    run = Run()
    module = Attending(run)
    assert module(**options).shape == (1, 2, 4, options.get("value_dim", 8))
    with pytest.raises(CheckpointError, match=reason):
        build_layers(context(), nn.ModuleDict({"attn": module}), run)


def test_a_module_attends_once(context) -> None:
    run = Run()
    module = Attending(run)
    module()
    module()
    with pytest.raises(CheckpointError, match="attn attends twice"):
        build_layers(context(), nn.ModuleDict({"attn": module}), run)
