"""Mixtures of experts against core's reference: both ways, every router and activation."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.conftest import device_facts, far_apart
from torch.utils._python_dispatch import TorchDispatchMode

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, MoeSpec, Placement, QuantSpec, RouterSpec
from hotshoe.slots.reference.moe import Moe as Reference
from hotshoe.slots.reference.router import route
from hotshoe_conformance.cases import moe as cases
from hotshoe_conformance.cases.base import Setup
from hotshoe_conformance.place import Place
from hotshoe_triton import moe
from hotshoe_triton.device import ARCHS, arch_of
from hotshoe_triton.kernels.moe import arrange
from hotshoe_triton.moe import Plan, Tile

NORMED = RouterSpec(renormalize=True)
SIGMOID = RouterSpec("sigmoid", True, 2.5, correction=True)
ALONE = Plan(Tile(0, 32, 32, 4, 2), Tile(0, 32, 32, 4, 2))
BLOCKS = Plan(Tile(16, 32, 32, 4, 2), Tile(16, 64, 32, 4, 2))
#: Of a row's largest number: pairs' results are rounded to the type before they are added up.
TOLERANCE = {"float32": 1e-4, "bfloat16": 2.5e-2, "float16": 4e-3}


def spec_of(
    dtype: str = "float32", gated: bool = True, hidden: int = 48, inner: int = 32, **more: object
) -> MoeSpec:
    bias = more.pop("bias", False)
    gate_up = LinearSpec(hidden, (1 + gated) * inner, dtype, bias=bias)
    down = LinearSpec(inner, hidden, dtype, bias=bias)
    kind, router = more.pop("kind", "silu"), more.pop("router", NORMED)
    return MoeSpec(gate_up, down, more.pop("experts", 8), 2, kind, router, gated, **more)


CLAMPED = spec_of(limit=0.7, alpha=1.702, shift=1.0, bias=True)
SPECS = {
    "plain": spec_of(),
    "bfloat16": spec_of("bfloat16", kind="gelu_tanh", bias=True),
    "float16": spec_of("float16", kind="gelu"),
    "clamped": CLAMPED,
    "limit alone": spec_of(limit=0.4),
    "gates of their own": spec_of(limit=0.4, gate_limit=0.9),
    "ungated": spec_of(gated=False, kind="relu2", bias=True),
    "ungated clamped": spec_of(gated=False, limit=0.5),
    "odd": spec_of(hidden=37, inner=41, bias=True),
    "thin": spec_of(inner=1),
    "33 experts": spec_of(experts=33),
}
ROUTERS = {
    "softmax": RouterSpec(scale=1.5),
    "normed": NORMED,
    "corrected": RouterSpec(correction=True),
    "sigmoid": SIGMOID,
    "groups": RouterSpec(groups=4, groups_kept=2),
    "two best of groups": replace(SIGMOID, groups=4, groups_kept=2, group_score="top2"),
    "three groups": replace(SIGMOID, groups=3, groups_kept=2, group_score="top2"),
    "sparsemixer": RouterSpec("sparsemixer", jitter=0.1),
    "sqrtsoftplus": replace(SIGMOID, scoring="sqrtsoftplus"),
}


def load(ops: list, spec: MoeSpec, rng: torch.Generator, experts: list[int] | None = None) -> None:
    """Give all operations the same weights, gate and up as parts of their own."""
    dtype = getattr(torch, spec.dtype)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng, device=rng.device).to(dtype)

    for expert in range(spec.num_experts) if experts is None else experts:
        for side, count in (("gate_up", 1 + spec.gated), ("down", 1)):
            part = getattr(spec, side)
            rows = part.out_features // count
            tensors = {"weight": [normal(rows, part.in_features) / 4 for _ in range(count)]}
            if part.bias:
                tensors["bias"] = [normal(rows) for _ in range(count)]
            for op in ops:
                getattr(op, f"load_{side}")(expert, tensors)


def tokens(count: int, spec: MoeSpec, rng: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Return x with a gap between its rows, logits, and a correction or None."""
    hidden = spec.gate_up.in_features
    x = torch.randn(count, hidden + 16, generator=rng, device=rng.device)
    logits = 2 * torch.randn(count, spec.num_experts, generator=rng, device=rng.device)
    correction = None
    if spec.router.correction:
        correction = torch.randn(spec.num_experts, generator=rng, device=rng.device) / 4
    return x.to(getattr(torch, spec.dtype))[:, :hidden], logits, correction


@pytest.mark.parametrize("plan", [ALONE, BLOCKS], ids=["pairs", "blocks"])
@pytest.mark.parametrize("name", SPECS)
def test_matches_the_reference(
    facts: DeviceFacts, rng: torch.Generator, name: str, plan: Plan
) -> None:
    spec = SPECS[name]
    assert moe.supports(spec, facts).accepted
    op, plain = moe.Moe(spec, facts, plan), Reference(spec, facts)
    load([op, plain], spec, rng)
    for count in (1, 5):
        given = tokens(count, spec, rng)
        got, want = op(*given), plain(*given)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        largest = want.float().abs().amax(1, keepdim=True)
        assert ((got.float() - want.float()).abs() <= TOLERANCE[spec.dtype] * largest).all()


@pytest.mark.parametrize("name", ["clamped", "odd"])
def test_products_are_changed_as_in_the_reference(
    facts: DeviceFacts, rng: torch.Generator, name: str
) -> None:
    """Each row's change says which token and expert it is of."""
    spec = SPECS[name]
    op, plain = moe.Moe(spec, facts), Reference(spec, facts)
    load([op, plain], spec, rng)
    given = tokens(9, spec, rng)

    def change(name: str, y: torch.Tensor, x: torch.Tensor, tokens, experts) -> None:
        assert y.shape[1] == getattr(spec, name).out_features
        y += (tokens - 2 * experts)[:, None] * x[:, :1] / 8

    want, got, unchanged = (
        op.adapted(*given, None, how)
        for op, how in ((plain, change), (op, change), (op, lambda *_: None))
    )
    largest = want.abs().amax(1, keepdim=True)
    assert ((got - want).abs() <= TOLERANCE[spec.dtype] * largest).all()
    torch.testing.assert_close(unchanged, op(*given), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(got, unchanged, atol=0.1)


class Unasked(TorchDispatchMode):
    """Lets nobody ask the device for numbers, or for shapes that depend on them."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        asking = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
        if func is torch.ops.aten.index.Tensor:  # which asks for masks alone
            assert all(x is None or x.dtype != torch.bool for x in args[1]), func
        else:
            assert asking.isdisjoint(func.tags), func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("held", [None, 3])
def test_a_mixture_that_stops_is_recordable(
    facts: DeviceFacts, rng: torch.Generator, held: int | None
) -> None:
    spec = replace(SPECS["odd"], held=held)
    op = moe.Moe(spec, facts)
    load([op], spec, rng, list(range(spec.places)))
    placement = None
    if held is not None:
        table = torch.arange(spec.num_experts, device=facts.device).clamp(max=held).int()
        placement = Placement(table[None])
    given = tokens(9, spec, rng)
    with pytest.raises(AssertionError, match="_local_scalar_dense"), Unasked():
        given[0][0, 0].item()
    with Unasked():
        op.adapted(*given, placement, lambda *_: None)
    assert op.recordable


@pytest.mark.parametrize("name", ROUTERS)
def test_experts_are_chosen_as_the_reference_does(
    facts: DeviceFacts, rng: torch.Generator, name: str
) -> None:
    router = ROUTERS[name]
    spec = replace(spec_of(experts=24, router=router), top_k=5)
    _, logits, correction = tokens(30, spec, rng)
    weights, ids = moe.Router(spec, facts)(logits, correction)
    wanted_weights, wanted = route(logits, correction, 5, router)
    assert ids.dtype == torch.int32
    assert torch.equal(ids.long().sort(1).values, wanted.sort(1).values)
    order, wanted_order = ids.argsort(1), wanted.argsort(1)
    torch.testing.assert_close(weights.gather(1, order), wanted_weights.gather(1, wanted_order))


def test_experts_whose_logits_are_masked_are_not_chosen(
    facts: DeviceFacts, rng: torch.Generator
) -> None:
    """Small scores count as exactly as large ones."""
    router = RouterSpec("sqrtsoftplus", renormalize=True, scale=1.5)
    spec = replace(spec_of(experts=24, router=router), top_k=3)
    logits = torch.full((2, 24), -torch.inf, device=rng.device)
    own = torch.tensor([[4, 7, 20], [0, 1, 23]], device=rng.device)
    logits.scatter_(1, own, torch.tensor([[-9.0, -14.0, -3.0], [30.0, -20.0, 0.0]]).to(own.device))
    weights, ids = moe.Router(spec, facts)(logits, None)
    wanted, order = route(logits, None, 3, router)
    torch.testing.assert_close(ids.long(), order)
    assert torch.equal(ids.long().sort(1).values, own)
    torch.testing.assert_close(weights, wanted, rtol=1e-5, atol=0)


def test_one_expert_may_get_every_token(facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = spec_of()
    op, plain = moe.Moe(spec, facts, BLOCKS), Reference(spec, facts)
    load([op, plain], spec, rng)
    x, logits, _ = tokens(37, spec, rng)
    logits[:, 6:] += 100.0
    torch.testing.assert_close(op(x, logits, None), plain(x, logits, None), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("pairs", "experts"), [(1, 8), (100, 5), (300, 33)])
def test_blocks_hold_each_pair_once(
    facts: DeviceFacts, rng: torch.Generator, pairs: int, experts: int
) -> None:
    block, size = 16, pairs // 16 + experts
    ids = torch.randint(experts // 2 + 1, (pairs,), generator=rng, device=rng.device).int()
    order, blocks = ids.new_full((pairs,), -1), ids.new_full((size, 3), -7)
    arrange[(experts,)](order, blocks, ids, pairs, BLOCK_M=block, BLOCK_P=128, CHAINED=False)
    assert torch.equal(order.long(), ids.argsort(stable=True))
    covered = []
    for expert, first, end in blocks.tolist():
        assert expert >= -1
        if expert >= 0:
            covered += range(first, min(first + block, end))
            assert set(ids[order.long()[first : min(first + block, end)]].tolist()) == {expert}
    assert sorted(covered) == list(range(pairs))


def test_blocks_that_nobody_has_cut_are_left_out(facts: DeviceFacts, rng: torch.Generator) -> None:
    """A rehearsed start launches products and not the kernel that cuts blocks: all are zeros."""
    spec, device = CLAMPED, facts.device
    op = moe.Moe(spec, facts, BLOCKS)
    size, tile = spec.gate_up.in_features, BLOCKS.first
    order = torch.tensor([1 << 30, 0], dtype=torch.int32, device=device)[1:]
    blocks = torch.zeros(2, 3, dtype=torch.int32, device=device)
    x = torch.randn(1, size, generator=rng, device=rng.device).to(device)
    y = torch.full((1, spec.down.in_features), 7.0, device=device)
    grid = (len(blocks) * -(-y.size(1) // tile.rows),)
    op._grouped[grid](
        y, *op._gate_up.operands(x), order, blocks, x.stride(0), FIRST=True, SORTED=True,
        **(op._sizes(True) | {"N": y.size(1)}), **op._inner, **op._gate_up.constants(),
        **tile.constants(), **op._chain,
    )  # fmt: skip
    assert (y == 7.0).all()


@pytest.mark.parametrize("plan", [ALONE, BLOCKS], ids=["pairs", "blocks"])
@pytest.mark.parametrize("spec", [spec_of(), CLAMPED], ids=["plain", "clamped"])
def test_nan_stays_in_its_row(
    facts: DeviceFacts, rng: torch.Generator, spec: MoeSpec, plan: Plan
) -> None:
    op = moe.Moe(spec, facts, plan)
    load([op], spec, rng)
    x, logits, _ = tokens(5, spec, rng)
    x[1, 3], logits[3, 0] = torch.nan, torch.nan
    assert op(x, logits, None).isnan().all(1).tolist() == [False, True, False, True, False]
    assert op(x, logits, None).isnan().any(1).tolist() == [False, True, False, True, False]


def test_experts_are_replaced_where_they_lie(facts: DeviceFacts, rng: torch.Generator) -> None:
    op, plain = moe.Moe(CLAMPED, facts, BLOCKS), Reference(CLAMPED, facts)
    assert op.state() == {} and op.nbytes() == 0
    load([op, plain], CLAMPED, rng)
    state = op.state()
    assert state.keys() == {"gate_up.weight", "gate_up.bias", "down.weight", "down.bias"}
    assert op.nbytes() == sum(tensor.nbytes for tensor in state.values())
    addresses = {name: tensor.data_ptr() for name, tensor in state.items()}
    load([op, plain], CLAMPED, rng, [5, 2])
    assert addresses == {name: tensor.data_ptr() for name, tensor in op.state().items()}
    given = tokens(4, CLAMPED, rng)
    torch.testing.assert_close(op(*given), plain(*given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("plan", [ALONE, BLOCKS], ids=["pairs", "blocks"])
def test_rows_far_apart_need_64_bits(facts: DeviceFacts, rng: torch.Generator, plan: Plan) -> None:
    spec = spec_of("bfloat16")
    op = moe.Moe(spec, facts, plan)
    load([op], spec, rng)
    x, logits, _ = tokens(3, spec, rng)
    assert torch.equal(op(far_apart(x), logits, None), op(x, logits, None))


def test_an_empty_batch(facts: DeviceFacts, rng: torch.Generator) -> None:
    op = moe.Moe(CLAMPED, facts)
    load([op], CLAMPED, rng)
    assert op(*tokens(0, CLAMPED, rng)).shape == (0, 48)


QWEN = MoeSpec(
    LinearSpec(2048, 1536, "bfloat16"), LinearSpec(768, 2048, "bfloat16"), 128, 8, "silu", NORMED
)


def test_plans_follow_what_experts_expect(facts: DeviceFacts) -> None:
    hopper = device_facts("sm_90", units=132)
    assert [moe.plan_for(n, QWEN, hopper).first.pairs for n in (1, 32, 256, 8192)] == [
        0,
        16,
        32,
        128,
    ]
    few = replace(QWEN, num_experts=8)
    assert moe.plan_for(1, few, hopper).first.pairs == 0
    assert moe.plan_for(2, few, hopper).first.pairs == 16


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_plans_fit_shared_memory(arch: str, dtype: str) -> None:
    facts, size = device_facts(arch), 4 if dtype == "float32" else 2
    sides = {"gate_up": replace(QWEN.gate_up, dtype=dtype), "down": replace(QWEN.down, dtype=dtype)}
    spec = replace(QWEN, **sides)
    for plan in (
        *(moe.plan_for(1 << i, spec, facts) for i in range(14)),
        moe.one_tile(spec, facts),
    ):
        assert plan.first.pairs == plan.second.pairs
        for tile, halves in ((plan.first, 2), (plan.second, 1)):
            if tile.pairs:
                stage = (halves * tile.rows + tile.pairs) * tile.columns * size
                assert stage * tile.stages <= arch_of(facts).shared_bytes


class Stopping(moe.Moe):
    """Stops between its products, and changes nothing."""

    def __call__(self, x, logits, correction, placement=None) -> torch.Tensor:
        return self.adapted(x, logits, correction, placement, lambda *_: None)


@pytest.mark.parametrize("kind", [moe.Moe, Stopping])
@pytest.mark.parametrize("weight", [None, cases.OPERANDS[0]["weight"]], ids=["plain", "packed"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_rank_with_some_experts_adds_up_what_these_compute(
    facts: DeviceFacts, weight: QuantSpec | None, dtype: str, kind: type[moe.Moe]
) -> None:
    """Experts that are elsewhere add nothing, take turns, and are counted; NaN goes nowhere."""
    source = torch.Generator().manual_seed(torch.seed() % 2**32)
    for held, shape in ((3, cases.Tokens(7)), (4, cases.Tokens(3, nan=True))):
        spec = cases.moe(64, 48, dtype, held=held, weight=weight, bias=True)
        assert moe.supports(spec, facts).accepted
        problem, place = cases.SUITE.problem(Setup(spec, shape), source), Place(facts.device)
        got = problem.call(kind(spec, facts), place)
        assert not place.overrun()
        for name, expected in problem.expected().items():
            found = expected.check(got[name].cpu())
            assert not found.message, f"{name}: {found.message}"


ROUNDED = {
    "weight": QuantSpec("int8", "channel", online=True),
    "activation": QuantSpec("int8", "token", dynamic=True),
}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (replace(QWEN, gate_up=replace(QWEN.gate_up, **ROUNDED)), "gate_up quantizes x"),
        (replace(QWEN, down=replace(QWEN.down, out_dtype="float32")), "results of type float32"),
        (replace(QWEN, num_experts=5000), "more than 4096 experts"),
        (replace(QWEN, activation="elu"), "not elu"),
        (replace(QWEN, gated=False), "outputs of gate_up"),
        (replace(QWEN, alpha=1.5, activation="gelu"), "alpha for silu alone"),
        (replace(QWEN, router=RouterSpec("ranks")), "not ranks"),
        (replace(QWEN, router=RouterSpec(groups=3)), "groups of equal size"),
        (replace(QWEN, top_k=129), "chooses 1 to 128 experts"),
        (
            replace(
                QWEN,
                gate_up=LinearSpec(1 << 16, 1 << 16, "bfloat16"),
                down=LinearSpec(1 << 15, 1 << 16, "bfloat16"),
            ),
            "gate_up has 2147483648 elements or more",
        ),
    ],
)
def test_refusals(facts: DeviceFacts, spec: MoeSpec, reason: str) -> None:
    assert reason in moe.supports(spec, facts).reason


def test_unknown_architectures_are_refused(facts: DeviceFacts) -> None:
    assert "architecture sm_70" in moe.supports(QWEN, replace(facts, arch="sm_70")).reason
