"""Tensors of all experts in the place of single matrices: views, names, and what does not fit."""

import pytest
import torch

from hotshoe.errors import CheckpointError
from hotshoe.layers import WeightTable
from hotshoe.layers.stacks import stacks_of
from hotshoe.loader.checkpoint import feed
from hotshoe.loader.sources import Stored, Stream

PARTS = tuple((f"e.{i}.gate.weight", f"e.{i}.up.weight") for i in range(3))


class Described(Stream):
    """Hears what was taken, and says how it has tensors."""

    def __init__(self, tensors):
        super().__init__(tensors.items())
        self.heard = []

    def taken(self, name):
        self.heard.append(name)

    def stored(self, name):
        return Stored("float32", self.tensor(name).nbytes)


def table():
    made, got = WeightTable(), {}
    made.rename("^old\\.", "")
    made.unstack("e.gate_up_proj", PARTS)
    for name in (*(part for one in PARTS for part in one), "other"):
        made.expect(name, (2, 5), lambda tensor, name=name: got.__setitem__(name, tensor))
    return made, got


def test_rows_take_turns():
    made, got = table()
    made.unstack("e.gate_up_proj", PARTS, interleaved=True)
    whole = torch.randn(3, 4, 5)
    tensors = {"old.e.gate_up_proj": whole, "other": torch.ones(2, 5)}
    feed(made, made.decoded(Described(tensors)))
    for i, (gate, up) in enumerate(PARTS):
        assert torch.equal(got[gate], whole[i, ::2]) and torch.equal(got[up], whole[i, 1::2])


def test_each_expert_gets_its_rows():
    made, got = table()
    whole, other = torch.randn(3, 4, 5), torch.randn(2, 5)
    source = Described({"old.e.gate_up_proj": whole, "other": other})
    decoded = made.decoded(source)
    feed(made, decoded)
    made.check_complete()
    for i in range(3):
        assert torch.equal(got[f"e.{i}.gate.weight"], whole[i, :2])
        assert torch.equal(got[f"e.{i}.up.weight"], whole[i, 2:])
    assert torch.equal(got["other"], other)
    assert source.heard == ["old.e.gate_up_proj", "other"]
    assert decoded.stored("e.2.up.weight") == Stored("float32", 40)
    assert decoded.stored("other") == Stored("float32", 40)


def test_gates_and_ups_may_be_apart():
    """As Step 3.5 is published, scales of blocks beside them."""
    templates = ("e.{}.gate_proj", "e.{}.up_proj", "e.{}.down_proj")
    stacks = stacks_of(templates, 2)
    assert stacks["e.gate_proj"] == (("e.0.gate_proj.weight",), ("e.1.gate_proj.weight",))
    assert stacks["e.up_proj_scale_inv"][1] == ("e.1.up_proj.weight_scale_inv",)
    assert stacks["e.gate_up_proj"][0] == ("e.0.gate_proj.weight", "e.0.up_proj.weight")
    assert "e.gate_proj" not in stacks_of(templates[1:], 2) and len(stacks) == 12


def test_single_matrices_are_fed_as_before():
    made, got = table()
    given = {part: torch.randn(2, 5) for one in PARTS for part in one}
    source = Stream({**given, "other": torch.zeros(2, 5)}.items())
    feed(made, made.decoded(source))
    made.check_complete()
    assert all(torch.equal(got[name], tensor) for name, tensor in given.items())
    assert not hasattr(made.decoded(source), "stored")


def test_matrices_below_each_other_and_transposed_ones():
    made, got = WeightTable(), {}
    made.unstack("e.up", tuple((f"{i}.up",) for i in range(3)))
    made.unstack("e.down", tuple((f"{i}.down",) for i in range(3)), transposed=True)
    for name in [f"{i}.{part}" for i in range(3) for part in ("up", "down")]:
        shape = (2, 5) if name.endswith("up") else (5, 2)
        made.expect(name, shape, lambda tensor, name=name: got.__setitem__(name, tensor))
    up, down = torch.randn(6, 5), torch.randn(6, 5)
    feed(made, made.decoded(Stream([("e.up", up), ("e.down", down)])))
    made.check_complete()
    for i in range(3):
        assert torch.equal(got[f"{i}.up"], up[2 * i : 2 * i + 2])
        assert torch.equal(got[f"{i}.down"], down[2 * i : 2 * i + 2].T)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 1, 1)])
def test_matrices_of_an_expert_share_one_number(shape):
    made, got = WeightTable(), {}
    for name, parts in stacks_of(["e.{}.gate", "e.{}.up", "e.{}.down"], 3).items():
        made.unstack(name, parts)
    for i in range(3):
        for part in ("gate", "up"):
            name = f"e.{i}.{part}.weight_scale_inv"
            made.expect(name, (1, 1), lambda tensor, name=name: got.__setitem__(name, tensor))
    scales = torch.randn(shape)
    feed(made, made.decoded(Stream([("e.gate_up_proj_scale_inv", scales)])))
    made.check_complete()
    wanted = scales.flatten()
    assert all(float(tensor) == float(wanted[int(name[2])]) for name, tensor in got.items())


@pytest.mark.parametrize("shape", [(2, 4, 5), (3, 3, 5), (4, 5)])
def test_a_stack_of_another_shape_is_refused(shape):
    made, _ = table()
    with pytest.raises(CheckpointError, match=r"e\.gate_up_proj has shape .* 3 experts of 2"):
        feed(made, made.decoded(Stream([("e.gate_up_proj", torch.zeros(shape))])))


def test_both_layouts_at_once_are_refused():
    made, _ = table()
    pairs = [("e.gate_up_proj", torch.zeros(3, 4, 5)), ("e.1.up.weight", torch.zeros(2, 5))]
    with pytest.raises(CheckpointError, match=r"e\.1\.up\.weight and e\.gate_up_proj are the same"):
        made.decoded(Stream(pairs))
