"""Arcee: its MLPs."""

import pytest

from hotshoe.errors import CheckpointError


def test_mlps_have_no_gates(build_family) -> None:
    ctx = build_family("Arcee")
    assert not any("gate" in name for name in ctx.weights.expected)
    assert not any(slot.startswith("gated") for slot, _ in ctx.selector.decisions)


def test_an_unknown_activation_is_named(build_family) -> None:
    with pytest.raises(CheckpointError, match=r"hidden_act is 'tanh'.*relu2"):
        build_family("Arcee", hidden_act="tanh")
