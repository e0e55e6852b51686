"""Experts of transformers' modules behind slot `moe`."""

import pytest
import torch
from torch import nn
from transformers.integrations.moe import use_experts_implementation

from hotshoe.layers import Mixture, MoeNames, RoutedExperts
from hotshoe.slots import RouterSpec
from hotshoe_models.hf import build
from hotshoe_models.hf.attention import Run
from hotshoe_models.hf.experts import ExpertsModule, replace_experts, watch_choices
from hotshoe_models.hf.renames import Stacked

SIZES = {"num_experts": 6, "num_experts_per_tok": 2}


class Experts(nn.Module):
    def __init__(self, config: object = None) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(3, 10, 4))
        self.down_proj = nn.Parameter(torch.empty(3, 4, 5))
        self.act_fn = nn.SiLU()

    def forward(self, *chosen: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Divided(Experts):
    def _apply_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        return gate_up


USUAL = use_experts_implementation(type("Usual", (Experts,), {}))
OTHERS = [
    use_experts_implementation(has_bias=True)(type("Biased", (Experts,), {})),
    use_experts_implementation(is_concatenated=False)(type("Interleaved", (Experts,), {})),
    use_experts_implementation(type("Divided", (Divided,), {})),
]


def test_slots_take_experts_by_name_or_stacked(described, context) -> None:
    ctx = context()
    build(described("OlmoeForCausalLM", **SIZES), ctx)
    prefix = "model.layers.1.mlp.experts"
    [place] = ctx.weights.where(f"{prefix}.5.up_proj.weight")
    assert place.holder.slot == "moe"
    assert ctx.weights.expected[f"{prefix}.5.up_proj.weight"].shape == (48, 32)
    [decision] = [d for d in ctx.selector.decisions.values() if d.slot == "moe"]
    assert (decision.spec.num_experts, decision.spec.top_k) == (6, 2)


@pytest.mark.parametrize("weights", [[[0.5, 0.2]], [[1.5, 2.0]], [[0.25, 0.0]]], ids=str)
def test_what_experts_count(context, weights: list[list[float]]) -> None:
    ctx = context()
    mixture = Mixture(
        hidden_size=4,
        intermediate_size=5,
        num_experts=3,
        top_k=2,
        activation="silu",
        router=RouterSpec(),
        names=MoeNames(gate_up=("e.{}.g", "e.{}.u"), down="e.{}.d"),
    )
    module = ExpertsModule(RoutedExperts(ctx, "", mixture), 3)
    held = {name: torch.randn(wanted.shape) for name, wanted in ctx.weights.expected.items()}
    for name, tensor in held.items():
        ctx.weights.feed(name, tensor)
    x, chosen, expected = torch.randn(1, 4), [2, 0], torch.zeros(1, 4)
    for expert, weight in zip(chosen, weights[0], strict=True):
        gate, up, down = (held[f"e.{expert}.{part}.weight"] for part in "gud")
        expected += weight * ((nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T)
    found = module(x, torch.tensor([chosen]), torch.tensor(weights))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.__name__)
def test_experts_of_another_form_stay_with_transformers(
    context, caplog, kind: type[nn.Module]
) -> None:
    model, run = nn.ModuleDict({"experts": kind(None), "usual": USUAL(None)}), Run()
    for module in model.values():
        watch_choices(module, run)
        module(torch.zeros(2, 4), torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, 2))
    ctx = context()
    sources = ("usual.*.a.weight", "usual.*.b.weight")
    stacked = [Stacked("usual.gate_up_proj", sources), Stacked("usual.down_proj", ("x.*.weight",))]
    assert replace_experts(ctx, model, run, stacked) == ["experts"]
    assert "experts of 1 layers have a form of their own (experts)" in caplog.text
    assert type(model["experts"]) is kind and isinstance(model["usual"], ExpertsModule)
    assert {"usual.2.b.weight", "x.0.weight"} <= ctx.weights.expected.keys()
