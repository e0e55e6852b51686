"""The native mixture of experts against the reference, in place and recorded."""

from dataclasses import replace

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import GraphSpec, LinearSpec, MoeSpec, QuantSpec, RouterSpec
from hotshoe.slots.reference.moe import Moe as Reference
from hotshoe_cpu.graph import RECORDED_AT, Graph
from hotshoe_cpu.moe import Moe, supports

HIDDEN, INNER, EXPERTS = 70, 45, 8
GROUPED = RouterSpec("sigmoid", True, 2.5, True, groups=4, groups_kept=2, group_score="top2")
ONLINE = QuantSpec("int8", "channel", online=True)
INT8 = {"weight": ONLINE, "activation": QuantSpec("int8", "token", dynamic=True)}


def spec_of(dtype: str = "float32", gated: bool = True, **more) -> MoeSpec:
    both = {key: more.pop(key) for key in ("bias", "weight", "activation") if key in more}
    gate_up = LinearSpec(HIDDEN, (1 + gated) * INNER, dtype, **both)
    down = LinearSpec(INNER, HIDDEN, dtype, **both)
    kind, router = more.pop("kind", "silu"), more.pop("router", RouterSpec(renormalize=True))
    return MoeSpec(gate_up, down, EXPERTS, 2, kind, router, gated, **more)


def load(ops: list, spec: MoeSpec, rng: torch.Generator) -> None:
    """Give all operations the same weights, gate and up as parts of their own."""
    stored = getattr(torch, spec.dtype)
    for expert in range(EXPERTS):
        for side in ("gate_up", "down"):
            part = getattr(spec, side)
            count = 2 if side == "gate_up" and spec.gated else 1
            rows = part.out_features // count
            tensors = {
                "weight": [
                    (torch.randn(rows, part.in_features, generator=rng) / 8).to(stored)
                    for _ in range(count)
                ]
            }
            if part.bias:
                tensors["bias"] = [torch.randn(rows, generator=rng) for _ in range(count)]
            for op in ops:
                getattr(op, f"load_{side}")(expert, tensors)


SPECS = {
    "plain": spec_of(),
    "bfloat16": spec_of("bfloat16", kind="gelu_tanh", bias=True),
    "int8": spec_of("bfloat16", **INT8),
    "grouped": spec_of(router=GROUPED),
    "rooted": spec_of(router=replace(GROUPED, scoring="sqrtsoftplus")),
    "mixed sparsely": spec_of(router=RouterSpec("sparsemixer", jitter=0.3)),
    "clamped": spec_of(limit=0.7, alpha=1.702, shift=1.0, bias=True),
    "gates of their own": spec_of(limit=0.7, gate_limit=1.1),
    "gates alone": spec_of("bfloat16", gate_limit=0.3),
    "relu2": spec_of("bfloat16", gated=False, kind="relu2"),
    "as steep as relu": spec_of("bfloat16", alpha=float(1 << 24)),
}


@pytest.mark.parametrize("name", SPECS)
def test_matches_the_reference(facts: DeviceFacts, rng: torch.Generator, name: str) -> None:
    spec = SPECS[name]
    assert supports(spec, facts).accepted
    native, plain = Moe(spec, facts), Reference(spec, facts)
    load([native, plain], spec, rng)
    correction = torch.randn(EXPERTS, generator=rng) / 4 if spec.router.correction else None
    for rows in (0, 1, 3, 40):
        x = torch.randn(rows, 100, generator=rng).to(getattr(torch, spec.dtype))[:, :HIDDEN]
        logits = 2 * torch.randn(rows, EXPERTS, generator=rng)
        want, got = plain(x, logits, correction), native(x, logits, correction)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        relative, absolute = (1e-5, 1e-5) if spec.dtype == "float32" else (2**-6, 0.15)
        torch.testing.assert_close(got, want, rtol=relative, atol=absolute)


@pytest.mark.parametrize("name", SPECS)
def test_products_are_changed_as_in_the_reference(
    facts: DeviceFacts, rng: torch.Generator, name: str
) -> None:
    """Each row's change says which token and expert it is of."""
    spec = SPECS[name]
    native, plain = Moe(spec, facts), Reference(spec, facts)
    load([native, plain], spec, rng)
    correction = torch.randn(EXPERTS, generator=rng) / 4 if spec.router.correction else None
    x = torch.randn(9, 100, generator=rng).to(getattr(torch, spec.dtype))[:, :HIDDEN]
    logits = 2 * torch.randn(9, EXPERTS, generator=rng)

    def change(name: str, y: torch.Tensor, x: torch.Tensor, tokens, experts) -> None:
        assert y.shape[1] == getattr(spec, name).out_features
        y += ((tokens - 2 * experts)[:, None] * x[:, :1]).to(y.dtype) / 8

    given = (x, logits, correction, None)
    want, got, unchanged = (
        op.adapted(*given, how)
        for op, how in ((plain, change), (native, change), (native, lambda *_: None))
    )
    relative, absolute = (1e-5, 1e-5) if spec.dtype == "float32" else (2**-6, 0.15)
    torch.testing.assert_close(got, want, rtol=relative, atol=absolute)
    torch.testing.assert_close(unchanged, native(*given), rtol=relative, atol=absolute)
    assert not torch.allclose(got.float(), unchanged.float(), atol=0.2)


def test_experts_are_replaced_where_they_lie(facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = SPECS["clamped"]
    native = Moe(spec, facts)
    load([native], spec, rng)
    state, fresh = native.state(), Moe(spec, facts)
    assert state.keys() == {"gate_up.packed", "gate_up.bias", "down.packed", "down.bias"}
    assert native.nbytes() == sum(tensor.nbytes for tensor in state.values())
    load([native, fresh], spec, rng)
    assert all(state[name].equal(tensor) for name, tensor in fresh.state().items())


@torch.inference_mode()
def test_a_recorded_mixture_chooses_anew(facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = SPECS["grouped"]
    op = Moe(spec, facts)
    load([op], spec, rng)
    x, logits, correction = torch.randn(3, HIDDEN), torch.randn(3, EXPERTS), torch.randn(EXPERTS)
    calls = 0

    def step() -> torch.Tensor:
        nonlocal calls
        calls += 1
        y = op(x, logits, correction)
        return y.add_(op(x, logits, correction)).mul_(op(x, logits, correction).sigmoid_())

    replay = Graph(GraphSpec(8), facts).record(step)
    for turn in range(RECORDED_AT + 4):
        x.normal_()
        logits.normal_()
        found, before = replay().clone(), calls
        assert before == min(turn + 1, RECORDED_AT)
        assert torch.equal(found, step())
        calls = before


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"router": RouterSpec("argmax")}, "scoring argmax is unknown"),
        ({"router": RouterSpec(groups=2, group_score="sum")}, "group score sum is unknown"),
        ({"activation": "relu"}, "activation relu is unknown"),
        ({"activation": "gelu", "alpha": 1.7}, "alpha goes with silu, not with gelu"),
        ({"down": LinearSpec(INNER, HIDDEN, "float16")}, "down: weights of type float16"),
    ],
)
def test_refusals_say_why(facts: DeviceFacts, changes: dict[str, object], reason: str) -> None:
    assert supports(replace(SPECS["plain"], **changes), facts).reason.startswith(reason)
