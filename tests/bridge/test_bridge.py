"""Modules are served where results agree, and stay as they are everywhere else."""

import pytest
import torch
from torch import nn

from hotshoe.slots import COMPOSED, Candidate, accept
from hotshoe.slots.reference.norm import build_norm
from hotshoe_bridge.bridge import bridge, summary
from hotshoe_bridge.recipes import dtype_of


class SomeRMSNorm(nn.Module):
    """A norm as models write it, with an offset on its weight."""

    def __init__(self, size: int, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size) * 0.1 + 1 - offset)
        self.variance_epsilon, self.offset = 1e-6, offset

    def forward(self, x):
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (wide * scale * (self.weight.float() + self.offset)).to(x.dtype)


class OddRMSNorm(SomeRMSNorm):
    """Looks like one, and computes something else."""

    def forward(self, x):
        return super().forward(x) * 1.1


class MLP(nn.Module):
    def __init__(self, bias: bool = False, act_fn: nn.Module | None = None) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(16, 24, bias=bias) for _ in range(2))
        self.down_proj = nn.Linear(24, 16, bias=bias)
        self.act_fn = act_fn or nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("make", "who"),
    [
        (lambda: SomeRMSNorm(16), "rms_norm/reference"),
        (lambda: SomeRMSNorm(16, offset=1.0), "rms_norm/reference"),
        (lambda: nn.LayerNorm(16), "layer_norm/reference"),
        (lambda: nn.LayerNorm(16, bias=False), "layer_norm/reference"),
        (lambda: nn.Linear(16, 40), "linear/reference"),
        (MLP, f"gated_mlp/{COMPOSED}"),
        (lambda: MLP(bias=True), f"gated_mlp/{COMPOSED}"),
    ],
)
def test_modules_that_are_served(operations, make, who: str, dtype) -> None:
    module = make().to(dtype)
    model = nn.Sequential(module)
    x = torch.randn(2, 3, 16).to(dtype)
    with torch.inference_mode():
        want = module(x.clone())
        found = bridge(model, operations)
        assert found.served == {"0": who}
        assert found.left == {}
        got = module(x.clone())
        assert (got - want).norm() <= 0.02 * want.norm()
        found.undo()
        assert torch.equal(module(x.clone()), want)
        assert "forward" not in vars(module)


def test_a_block_may_be_served_whole(operations_of) -> None:
    operations = operations_of(gated_mlp="reference")
    found = bridge(nn.Sequential(MLP()), operations)
    assert found.served == {"0": "gated_mlp/reference"}


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (OddRMSNorm(16), "rms_norm computes something else, by 0.09"),
        (nn.Conv1d(4, 4, 1), "no recipe for Conv1d"),
        (nn.Linear(16, 4).double(), "its parameters are torch.float64"),
    ],
)
def test_modules_that_are_left(operations, module: nn.Module, why: str) -> None:
    found = bridge(nn.Sequential(module), operations)
    assert found.served == {}
    assert why in found.left["0"]
    assert "forward" not in vars(module)


def test_parts_of_an_unknown_block_are_served(operations) -> None:
    found = bridge(nn.Sequential(MLP(act_fn=nn.Tanh())), operations)
    assert set(found.served) == {"0.gate_proj", "0.up_proj", "0.down_proj"}
    assert list(summary(found)) == ["3 by linear/reference"]


def test_a_candidate_that_is_wrong_is_not_let_in(operations_of) -> None:
    def half(spec, facts):
        return lambda x, weight: build_norm(spec, facts)(x, weight) / 2

    wrong = Candidate("rms_norm", "half", lambda s, f: accept(9), half)
    failing = Candidate("rms_norm", "none", lambda s, f: accept(9), lambda s, f: len)
    for candidate, said in ((wrong, "computes something else, by 0.5"), (failing, "TypeError")):
        found = bridge(nn.Sequential(SomeRMSNorm(16)), operations_of(candidate))
        assert found.served == {}
        assert said in found.left["0"]
        assert next(iter(summary(found))).startswith("left 0: rms_norm")


def test_what_a_bridged_layer_does_not_do(operations) -> None:
    module = nn.Linear(16, 4)
    bridge(nn.Sequential(module), operations)
    with pytest.raises(RuntimeError, match="no gradients"):
        module(torch.randn(2, 16, requires_grad=True))
    with pytest.raises(TypeError, match="takes its input alone"):
        module(torch.randn(2, 16), 3)


def test_one_type_of_parameters() -> None:
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).half())
    with pytest.raises(ValueError, match=r"its parameters are .*float"):
        dtype_of(mixed)
