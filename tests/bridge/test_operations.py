"""Operations without an engine: chosen, built and remembered as an engine does."""

import pytest
import torch

from hotshoe.errors import PluginError, SelectionError
from hotshoe.slots import Candidate, NormSpec, accept
from hotshoe_bridge.operations import Operations

SPEC = NormSpec(8, 1e-6, "float32")


def test_candidates_are_chosen_as_by_an_engine(operations_of) -> None:
    mine = Candidate("rms_norm", "mine", lambda s, f: accept(9), lambda s, f: lambda x, w: x + w)
    operations = operations_of(mine)
    assert operations.platform == "mine"
    op = operations.choose("rms_norm", SPEC)
    assert torch.equal(op(torch.ones(2, 8), torch.ones(8)), torch.full((2, 8), 2.0))
    [decision] = operations.decisions
    assert decision.chosen == "mine"
    assert operations.offered()["rms_norm"] == ["mine"]
    assert operations.offered()["linear"] == []


def test_what_holds_no_weight_is_built_once(operations) -> None:
    assert operations.choose_once("rms_norm", SPEC) is operations.choose_once("rms_norm", SPEC)
    assert operations.choose("rms_norm", SPEC) is not operations.choose("rms_norm", SPEC)


def test_mistakes_are_named(operations_of) -> None:
    with pytest.raises(SelectionError, match="slot rms_norm has no candidate 'fast'"):
        operations_of(rms_norm="fast")
    with pytest.raises(PluginError, match="unknown platform 'no-such'"):
        Operations("no-such")
