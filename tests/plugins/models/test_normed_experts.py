"""Experts whose outputs are normed one by one, against a sum over all experts."""

import pytest
import torch

from hotshoe.layers import BuildContext, Mixture, MoeNames, Stacked
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, RouterSpec, Selector
from hotshoe_models.normed_experts import NormedExperts

CPU = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)
SIZE, LATENT, INNER, COUNT, TOP_K, FACTOR, EPS, OUTPUT_EPS = 10, 6, 8, 5, 3, 0.7, 0.02, 0.3
MIXTURE = Mixture(
    hidden_size=SIZE,
    latent_size=LATENT,
    intermediate_size=INNER,
    num_experts=COUNT,
    top_k=TOP_K,
    activation="silu",
    router=RouterSpec("sigmoid", renormalize=True, scale=2.5, correction=True),
    names=MoeNames(
        stacked=Stacked(gate_up="mlp.experts.gate_up_proj", down="mlp.experts.down_proj"),
        latents=("mlp.pre_expert_proj", "mlp.post_expert_proj"),
    ),
)


@pytest.fixture
def made():
    """Return experts, and their weights by name in float64."""
    ctx = BuildContext(Selector(SLOTS, [], CPU), "float32", "float32", 4, 32)
    experts = NormedExperts(ctx, "", MIXTURE, FACTOR, EPS, OUTPUT_EPS)
    held = {name: torch.randn(want.shape) for name, want in ctx.weights.expected.items()}
    for name, tensor in held.items():
        for sink in ctx.weights.expected[name].sinks:
            sink(tensor)
    return experts, {name.removeprefix("mlp."): t.double() for name, t in held.items()}


def rms(x, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def test_experts_are_normed_before_they_are_weighted(made):
    experts, w = made
    x = torch.randn(7, SIZE)
    scores = (FACTOR * (x.double() @ w["gate.weight"].T)).sigmoid()
    chosen = (scores + w["gate.e_score_correction_bias"]).topk(TOP_K).indices
    weights = torch.zeros_like(scores).scatter(1, chosen, scores.gather(1, chosen))
    weights *= 2.5 / weights.sum(-1, keepdim=True)
    latents = rms(x.double() @ w["pre_expert_proj.weight"].T, EPS)
    latents *= 1 + w["pre_expert_norm.weight"]
    gate, up = torch.einsum("tl,eil->tei", latents, w["experts.gate_up_proj"]).chunk(2, -1)
    out = torch.einsum("tei,eli->tel", gate * gate.sigmoid() * up, w["experts.down_proj"])
    normed = rms(out * (1 + w["experts.post_expert_norm.weight"]), OUTPUT_EPS)
    wanted = (normed * weights[..., None]).sum(1) @ w["post_expert_proj.weight"].T
    torch.testing.assert_close(experts(x).double(), wanted, rtol=1e-4, atol=1e-5)


def test_steps_that_need_no_token_compute_none(made):
    assert made[0](torch.empty(0, SIZE)).shape == (0, SIZE)
