"""Everything composed from sums and even gathers; over a library that needs no device."""

import ast
import importlib.machinery
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.platforms.threads import check_exchanges, check_pieces, check_transfers, met
from tests.platforms.xpu.conftest import on_host
from torch._C import _distributed_c10d

from hotshoe.slots import CommunicatorSpec, Rendezvous
from hotshoe_triton.communicator import Communicator
from hotshoe_xpu import communicator
from hotshoe_xpu.communicator import Composed

FACTS = on_host()
ALLOWED = {"allreduce", "allgather", "broadcast", "send", "recv", "abort", "supports_coalescing"}


class Narrow:
    """A process group that has but what the bindings are relied on for."""

    def __init__(self, inner: object) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        assert name in ALLOWED, name
        return getattr(self._inner, name)


@pytest.fixture(params=[2, 3])
def group(request, tmp_path):
    """The number of ranks, and what runs a function on all; they have met."""
    size = request.param
    members = [Composed(CommunicatorSpec(size), FACTS, "gloo") for _ in range(size)]
    with met(members, tmp_path) as run:
        for member in members:
            member._group = Narrow(member._group)
        yield size, run


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("given", [True, False])
def test_pieces(group, even: bool, given: bool) -> None:
    check_pieces(*group, even, given)


def test_exchanges(group) -> None:
    check_exchanges(*group)


def test_transfers(group) -> None:
    check_transfers(*group)


def test_rows_that_do_not_divide(group) -> None:
    size, run = group
    with pytest.raises(ValueError, match="do not divide"):
        run(lambda rank, group: group.reduce_scatter(torch.zeros(size + 1)))


def test_the_bindings_are_refused_where_they_are_missing(monkeypatch) -> None:
    verdict = communicator.supports(CommunicatorSpec(2), FACTS)
    assert verdict.reason == "package oneccl_bindings_for_pytorch is not installed"
    fake = types.ModuleType(communicator.PACKAGE)
    fake.__spec__ = importlib.machinery.ModuleSpec(communicator.PACKAGE, None)
    monkeypatch.setitem(sys.modules, communicator.PACKAGE, fake)
    monkeypatch.setattr("importlib.metadata.version", lambda name: torch.__version__)
    assert communicator.supports(CommunicatorSpec(2), FACTS).score == 40
    built = communicator.build(CommunicatorSpec(2), FACTS)
    assert isinstance(built, Communicator) and built.size == 2


def test_a_registered_process_group_is_used(tmp_path, monkeypatch) -> None:
    made = []

    def create(store, rank, size, timeout):
        made.append((rank, size))
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    plugin = types.SimpleNamespace(creator_fn=create, extended_api=False)
    monkeypatch.setitem(dist.Backend._plugins, "CCL", plugin)
    alone = Composed(CommunicatorSpec(1), FACTS, "ccl")
    alone.open(Rendezvous(str(tmp_path), 0, 1, 60.0))
    assert made == [(0, 1)]
    alone.close()


class ProcessGroupXCCL:
    """Takes what PyTorch's takes."""

    class Options:
        _timeout = None

    def __init__(self, store: dist.Store, rank: int, size: int, options: Options) -> None:
        assert isinstance(options, ProcessGroupXCCL.Options)
        self._inner = dist.ProcessGroupGloo(store, rank, size, options._timeout)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_what_pytorch_has_inside_is_made_as_pytorch_makes_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(dist, "ProcessGroupXCCL", ProcessGroupXCCL, raising=False)
    members = [communicator.build_xccl(CommunicatorSpec(2), FACTS) for _ in range(2)]
    with met(members, tmp_path) as run:
        found = run(lambda rank, group: group.all_reduce(torch.ones(3)))
        assert [x.tolist() for x in found] == [[2.0] * 3] * 2


def test_pytorch_says_the_same_of_its_own() -> None:
    """Its stubs tell of classes that this build does not have."""
    stubs = Path(torch.__file__).with_name("_C") / "_distributed_c10d.pyi"
    [group] = (
        node
        for node in ast.parse(stubs.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == "ProcessGroupXCCL"
    )
    methods = {node.name: node for node in group.body if isinstance(node, ast.FunctionDef)}
    names = [argument.arg for argument in methods["__init__"].args.args]
    assert names == ["self", "store", "rank", "size", "options"]
    assert "Options" in [node.name for node in group.body if isinstance(node, ast.ClassDef)]
    assert hasattr(_distributed_c10d.Backend.Options, "_timeout")
