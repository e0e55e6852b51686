"""Mixtures of experts: what the slot describes is computed, the rest stays and is said."""

from types import SimpleNamespace

import pytest
import torch
from tests.bridge.vllm.conftest import RoutedExperts
from torch.nn import functional as F

from hotshoe_bridge.operations import Operations
from hotshoe_bridge.vllm import linear

EXPERTS, HIDDEN, INNER, TOP = 8, 32, 16, 2


def experts(**more) -> RoutedExperts:
    layer = RoutedExperts()
    layer.moe_config = SimpleNamespace(
        num_experts=EXPERTS,
        num_local_experts=EXPERTS,
        num_logical_experts=EXPERTS,
        experts_per_token=TOP,
        hidden_dim=HIDDEN,
        intermediate_size_per_partition=INNER,
        activation=SimpleNamespace(value="silu", is_gated=True),
        has_bias=False,
        moe_parallel_config=SimpleNamespace(dp_size=1),
    )
    layer.params_dtype = torch.float32
    layer.scoring_func, layer.renormalize, layer.routed_scaling_factor = "softmax", True, 1.0
    layer.use_grouped_topk, layer.num_expert_group, layer.topk_group = False, None, None
    layer.e_score_correction_bias = None
    layer.custom_routing_function = None
    for name, value in more.items():
        part = layer.moe_config if hasattr(layer.moe_config, name) else layer
        setattr(part, name, value)
    return layer


def method_of(engine, layer, name: str = "hotshoe", operations=None):
    linear.register(operations or Operations("cpu"))
    return engine.registered[name]().get_quant_method(layer, "model.experts")


def wanted(layer, x, logits):
    """Route as published, and add up the experts one by one."""
    scores = logits.softmax(-1) if layer.scoring_func == "softmax" else logits.sigmoid()
    chosen = scores
    if layer.e_score_correction_bias is not None:
        chosen = scores + layer.e_score_correction_bias
    if layer.use_grouped_topk:
        groups = chosen.unflatten(1, (layer.num_expert_group, -1))
        ranked = groups.topk(2).values.sum(-1)
        kept = F.one_hot(ranked.topk(layer.topk_group).indices, layer.num_expert_group).sum(1)
        chosen = groups.masked_fill(kept[..., None] == 0, -torch.inf).flatten(1)
    ids = chosen.topk(TOP).indices
    weights = scores.gather(1, ids)
    weights = weights / weights.sum(1, keepdim=True) * layer.routed_scaling_factor
    y = torch.zeros_like(x)
    for token in range(len(x)):
        for weight, expert in zip(weights[token], ids[token], strict=True):
            gate, up = (layer.w13_weight[expert] @ x[token]).chunk(2)
            y[token] += weight * (layer.w2_weight[expert] @ (F.silu(gate) * up))
    return y


@torch.inference_mode()
@pytest.mark.parametrize("grouped", [False, True])
def test_experts_are_computed(engine, grouped) -> None:
    more = {}
    if grouped:
        more = {
            "scoring_func": "sigmoid",
            "e_score_correction_bias": torch.randn(EXPERTS) * 0.1,
            "use_grouped_topk": True,
            "num_expert_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
        }
    layer = experts(**more)
    method = method_of(engine, layer)
    assert method.is_monolithic
    assert method.get_fused_moe_quant_config(layer) is None
    assert method.maybe_roundup_sizes(31, 17, torch.float32, None) == (31, 17)
    method.create_weights(layer, EXPERTS, HIDDEN, INNER, torch.float32)
    method.process_weights_after_loading(layer)
    x, logits = torch.randn(5, HIDDEN), torch.randn(5, EXPERTS)
    want = wanted(layer, x, logits)
    y = method.apply_monolithic(layer, x, logits)
    assert ((y - want).norm() / want.norm()) < 1e-4
    assert engine.said == []


@torch.inference_mode()
def test_experts_are_quantized_at_load(engine) -> None:
    layer = experts()
    method = method_of(engine, layer, "hotshoe_int8_weights")
    method.create_weights(layer, EXPERTS, HIDDEN, INNER, torch.float32)
    method.process_weights_after_loading(layer)
    x, logits = torch.randn(5, HIDDEN), torch.randn(5, EXPERTS)
    want = wanted(layer, x, logits)
    off = (method.apply_monolithic(layer, x, logits) - want).norm() / want.norm()
    assert 1e-4 < off < 0.03


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"custom_routing_function": print}, "its custom_routing_function is"),
        ({"num_local_experts": 4}, "experts are divided among ranks"),
        ({"moe_parallel_config": SimpleNamespace(dp_size=2)}, "requests are divided among ranks"),
        ({"activation": SimpleNamespace(value="situ")}, "its activation is situ"),
        ({"scoring_func": "sqrtsoftplus"}, "its scores are sqrtsoftplus"),
        ({"swiglu_limit": 7.0}, "its swiglu_limit is 7.0"),
    ],
)
def test_what_the_slot_does_not_describe_stays_and_is_said(engine, operations, more, why) -> None:
    assert method_of(engine, experts(**more), operations=operations) is None
    [said] = engine.said
    assert said.startswith(f"hotshoe-bridge: model.experts stays vLLM's own: {why}")


def test_experts_of_quantized_checkpoints_are_refused(engine) -> None:
    linear.register(Operations("cpu"))
    config = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}
    made = engine.registered["hotshoe"].from_config(config)
    with pytest.raises(ValueError, match=r"model\.experts has experts, and those of quantized"):
        made.get_quant_method(experts(), "model.experts")
