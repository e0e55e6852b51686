"""Mixtures of experts: names of every form of a checkpoint, shared experts, ranks, faults."""

from dataclasses import replace

import pytest
import torch
from tests.core.layers.conftest import FACTS
from torch.nn import functional as F

from hotshoe.errors import CheckpointError, ConfigError, SelectionError
from hotshoe.layers import BuildContext, Mixture, MoE, MoeNames, OnlineFormat, Stacked, Storage
from hotshoe.slots import SLOTS, QuantSpec, RouterSpec, Selector
from hotshoe.types.mesh import Axis

HIDDEN, INNER, EXPERTS = 6, 10, 4
PLAIN = Mixture(
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    num_experts=EXPERTS,
    top_k=2,
    activation="silu",
    router=RouterSpec(renormalize=True),
)
STACKED = MoeNames(
    stacked=Stacked(
        gate_up="experts.gate_up_proj",
        down="experts.down_proj",
        gate_up_bias="experts.gate_up_proj_bias",
        down_bias="experts.down_proj_bias",
        transposed=True,
        interleaved=True,
    )
)


def context(rank=0, size=1, communicator=None, **options):
    selector = Selector(SLOTS, [], FACTS)
    ctx = BuildContext(selector, "float32", "float32", 4, 32, communicator=communicator, **options)
    ctx.rank, ctx.size = rank, size
    return ctx


class Sum:
    """Adds up what the ranks of one process hand over, one after the other."""

    def __init__(self):
        self.calls = 0

    def all_reduce(self, x, out):
        self.calls += 1
        return x


def weights_of(ctx, seed=1):
    source = torch.Generator().manual_seed(seed)
    return {n: torch.randn(w.shape, generator=source) for n, w in ctx.weights.expected.items()}


def feed(ctx, weights):
    for name in ctx.weights.expected:
        ctx.weights.feed(name, weights[name])
    ctx.weights.check_complete()


def expected(x, weights, gate_up, down, mixture=PLAIN):
    """Compute a mixture plainly; `gate_up(i)` and `down(i)` are matrix and bias of expert i."""
    logits = x.double() @ weights["0.mlp.gate.weight"].double().T
    share, ids = logits.topk(mixture.top_k, -1)
    share = share.softmax(-1)
    y = torch.zeros_like(x, dtype=torch.float64)
    for row in range(len(x)):
        for i, part in zip(ids[row].tolist(), share[row], strict=True):
            (first, first_bias), (second, second_bias) = gate_up(i), down(i)
            wide = first.double() @ x[row].double() + first_bias
            inner = F.silu(wide[:INNER]) * wide[INNER:]
            y[row] += part * (second.double() @ inner + second_bias)
    return y


def check(layer, x, wanted):
    torch.testing.assert_close(layer(x).double(), wanted, rtol=1e-4, atol=1e-5)


def by_name(weights, i):
    parts = [weights[f"0.mlp.experts.{i}.{part}_proj.weight"] for part in ("gate", "up")]
    return torch.cat(parts), 0.0


def test_experts_one_by_one() -> None:
    ctx = context()
    layer = MoE(ctx, "0.", PLAIN)
    weights = weights_of(ctx)
    assert len(weights) == 1 + 3 * EXPERTS
    feed(ctx, weights)
    x = torch.randn(9, HIDDEN)
    down = {i: (weights[f"0.mlp.experts.{i}.down_proj.weight"], 0.0) for i in range(EXPERTS)}
    check(layer, x, expected(x, weights, lambda i: by_name(weights, i), down.__getitem__))
    [place] = ctx.weights.where("0.mlp.experts.2.up_proj.weight")
    assert (place.part, place.rows) == ("experts.2.gate_up.weight", (INNER, 2 * INNER))
    assert place.needs == ("0.mlp.experts.2.gate_proj.weight",)
    held = place.holder.state()[place.part]
    assert torch.equal(held[INNER:], weights["0.mlp.experts.2.up_proj.weight"])


def test_an_expert_of_a_scaled_input() -> None:
    """The sigmoid of its logit multiplies what it takes, and not what it gives."""
    ctx = context()
    layer = MoE(ctx, "0.", replace(PLAIN, top_k=1, scaled_input=True, shared_size=INNER))
    weights = weights_of(ctx)
    feed(ctx, weights)
    x = torch.randn(9, HIDDEN)
    logits = x.double() @ weights["0.mlp.gate.weight"].double().T
    y = torch.zeros(9, HIDDEN, dtype=torch.float64)
    for row, (value, i) in enumerate(zip(*logits.max(-1), strict=True)):
        first, second = by_name(weights, int(i))[0], f"0.mlp.experts.{int(i)}.down_proj.weight"
        shared = [weights[f"0.mlp.shared_experts.{name}_proj.weight"] for name in ("gate", "up")]
        for taken, gate_up, down in (
            (x[row].double() * value.sigmoid(), first, weights[second]),
            (x[row].double(), torch.cat(shared), weights["0.mlp.shared_experts.down_proj.weight"]),
        ):
            wide = gate_up.double() @ taken
            y[row] += down.double() @ (F.silu(wide[:INNER]) * wide[INNER:])
    check(layer, x, y)


def test_stacked_transposed_and_interleaved_tensors_with_biases() -> None:
    ctx = context()
    layer = MoE(ctx, "0.", replace(PLAIN, bias=True, names=STACKED))
    weights = weights_of(ctx)
    shapes = {name: tuple(w.shape) for name, w in weights.items()}
    assert shapes == {
        "0.mlp.gate.weight": (EXPERTS, HIDDEN),
        "0.experts.gate_up_proj": (EXPERTS, HIDDEN, 2 * INNER),
        "0.experts.gate_up_proj_bias": (EXPERTS, 2 * INNER),
        "0.experts.down_proj": (EXPERTS, INNER, HIDDEN),
        "0.experts.down_proj_bias": (EXPERTS, HIDDEN),
    }
    feed(ctx, weights)

    def gate_up(i):
        rows, bias = (
            weights["0.experts.gate_up_proj"][i].T,
            weights["0.experts.gate_up_proj_bias"][i],
        )
        return torch.cat([rows[::2], rows[1::2]]), torch.cat([bias[::2], bias[1::2]])

    def down(i):
        return weights["0.experts.down_proj"][i].T, weights["0.experts.down_proj_bias"][i]

    x = torch.randn(9, HIDDEN)
    check(layer, x, expected(x, weights, gate_up, down))
    [place] = ctx.weights.where("0.experts.down_proj")
    assert (place.part, place.rows) == ("experts.*.down.weight", (0, HIDDEN))
    assert place.needs == ("0.experts.down_proj_bias",)


@pytest.mark.parametrize("scale_first", [True, False])
def test_outputs_are_scaled_and_another_input_chooses(scale_first) -> None:
    ctx = context()
    stacked = Stacked(gate_up="gate_up", down="down", output_scale="scale")
    layer = MoE(ctx, "0.", replace(PLAIN, names=MoeNames(stacked=stacked)))
    weights = weights_of(ctx)
    assert weights["0.scale"].shape == (EXPERTS,)
    order = sorted(weights, key=lambda name: (name == "0.scale") != scale_first)
    for name in order:
        ctx.weights.feed(name, weights[name])
    ctx.weights.check_complete()
    x, judged = torch.randn(2, 9, HIDDEN)
    scale = weights["0.scale"].double()
    chosen = judged.double() @ weights["0.mlp.gate.weight"].double().T
    share, ids = chosen.topk(PLAIN.top_k, -1)
    wanted = torch.zeros_like(x, dtype=torch.float64)
    for row in range(len(x)):
        for i, part in zip(ids[row].tolist(), share[row].softmax(-1), strict=True):
            wide = weights["0.gate_up"][i].double() @ x[row].double()
            inner = F.silu(wide[:INNER]) * wide[INNER:]
            wanted[row] += part * scale[i] * (weights["0.down"][i].double() @ inner)
    torch.testing.assert_close(layer(x, judged).double(), wanted, rtol=1e-4, atol=1e-5)
    places = [ctx.weights.where(name)[0] for name in ("0.down", "0.scale")]
    assert [place.needs for place in places] == [("0.scale",), ("0.down",)]


def test_shared_experts_behind_a_gate() -> None:
    names = MoeNames(shared_gate_up=("mlp.s.gate", "mlp.s.up"), shared_down="mlp.s.down")
    ctx = context()
    mixture = replace(PLAIN, shared_size=7, shared_gated=True, names=names)
    layer = MoE(ctx, "0.", mixture)
    weights = weights_of(ctx)
    feed(ctx, weights)
    x = torch.randn(5, HIDDEN)
    down = {i: (weights[f"0.mlp.experts.{i}.down_proj.weight"], 0.0) for i in range(EXPERTS)}
    wanted = expected(x, weights, lambda i: by_name(weights, i), down.__getitem__)
    gate, up, second = (weights[f"0.mlp.s.{n}.weight"].double() for n in ("gate", "up", "down"))
    shared = (F.silu(x.double() @ gate.T) * (x.double() @ up.T)) @ second.T
    opened = torch.sigmoid(x.double() @ weights["0.mlp.shared_expert_gate.weight"].double().T)
    check(layer, x, wanted + opened * shared)


def test_a_correction_of_any_shape_moves_the_choice_and_is_replaced_in_place() -> None:
    router = RouterSpec("sigmoid", correction=True)
    ctx = context()
    layer = MoE(ctx, "0.", replace(PLAIN, router=router, correction_shape=(1, EXPERTS)))
    weights = weights_of(ctx)
    name = "0.mlp.gate.e_score_correction_bias"
    assert weights[name].shape == (1, EXPERTS)
    feed(ctx, weights)
    x = torch.randn(3, HIDDEN)
    before = layer(x)
    ctx.weights.feed(name, torch.tensor([[9.0, 9.0, -9.0, -9.0]]))
    after = layer(x)
    ctx.weights.feed(name, torch.tensor([[-9.0, -9.0, 9.0, 9.0]]))
    assert not torch.equal(after, layer(x)) and before.shape == after.shape
    [place] = ctx.weights.where(name)
    assert place.holder.state()["correction"].tolist() == [-9.0, -9.0, 9.0, 9.0]


@pytest.mark.parametrize("names", [MoeNames(), STACKED], ids=["by-name", "stacked"])
def test_ranks_hold_parts_whose_results_add_up(names) -> None:
    mixture = replace(PLAIN, bias=True, shared_size=4, shared_gated=True, names=names)
    alone = context()
    whole = MoE(alone, "0.", mixture)
    weights = weights_of(alone)
    feed(alone, weights)
    x, parts = torch.randn(7, HIDDEN), []
    for rank in range(2):
        group = Sum()
        ctx = context(rank, 2, group)
        layer = MoE(ctx, "0.", mixture)
        feed(ctx, weights)
        parts.append(layer(x))
        assert group.calls == 1
    torch.testing.assert_close(sum(parts), whole(x), rtol=1e-4, atol=1e-5)


def test_experts_that_move_are_not_replaced_in_place() -> None:
    ctx = context(0, 2, Sum(), experts=Axis(0, 2), redundant_experts=0)
    MoE(ctx, "0.", PLAIN)
    feed(ctx, weights_of(ctx))
    with pytest.raises(CheckpointError, match=r"experts\.1\.down.* cannot be replaced in place"):
        ctx.weights.check_update(["0.mlp.experts.1.down_proj.weight"])


def test_int8_quantizes_experts_and_no_router() -> None:
    quant = QuantSpec("int8", "token", dynamic=True)
    form = OnlineFormat(Storage(QuantSpec("int8", "channel", online=True), quant))
    for quantize in (True, False):
        ctx = context(format=form)
        MoE(ctx, "0.", replace(PLAIN, shared_size=4, names=STACKED), quantize)
        specs = {d.slot: d.spec for d in ctx.selector.decisions.values()}
        assert (specs["moe"].down.weight is not None) == quantize
        router = next(spec for slot, spec in ctx.selector.decisions if slot == "linear")
        assert (router.weight, router.out_dtype) == (None, "float32")


class TwoTensors(OnlineFormat):
    """A checkpoint whose matrices come with scales."""

    def tensors(self, layer, shape, share):
        found = dict(super().tensors(layer, shape, share))
        return found | {"weight_scale": found["weight"]}


class ByExpert(OnlineFormat):
    """A checkpoint that quantizes all experts but one."""

    def storage(self, layer, shape):
        return None if ".experts.1." in layer else super().storage(layer, shape)


STORED = Storage(QuantSpec("int8", "channel"))


@pytest.mark.parametrize(
    ("form", "names", "message"),
    [
        (TwoTensors(STORED), STACKED, "experts.gate_up_proj holds all experts.*weight_scale"),
        (ByExpert(STORED), MoeNames(), "experts of 0. are stored in different forms"),
    ],
)
def test_forms_that_cannot_be_read_are_refused_by_name(form, names, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        MoE(context(format=form), "0.", replace(PLAIN, names=names))


def test_channels_that_do_not_divide_among_ranks_are_named() -> None:
    with pytest.raises(ConfigError, match=r"tensor_parallel_size 3 does not divide .* 10 channels"):
        MoE(context(0, 3, Sum()), "0.", PLAIN)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_k": 5}, "chooses 1 to 4 experts, not 5"),
        (
            {"router": RouterSpec("hash")},
            "knows the scorings softmax, sigmoid, sparsemixer, sqrtsoftplus, not",
        ),
        ({"router": RouterSpec(groups=3)}, "needs groups of equal size, not 3 of 4 experts"),
    ],
)
def test_what_no_router_does_is_refused(changes, message) -> None:
    with pytest.raises(SelectionError, match=message):
        MoE(context(), "0.", replace(PLAIN, **changes))


def test_a_missing_expert_is_named() -> None:
    ctx = context()
    MoE(ctx, "0.", PLAIN)
    weights = weights_of(ctx)
    for name in ctx.weights.expected:
        if "experts.3.up" not in name:
            ctx.weights.feed(name, weights[name])
    with pytest.raises(CheckpointError, match=r"lacks 0\.mlp\.experts\.3\.up_proj\.weight"):
        ctx.weights.check_complete()
