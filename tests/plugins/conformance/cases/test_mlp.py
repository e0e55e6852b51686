"""The cases of gated_mlp find whoever forgets or confuses a part of the block."""

import pytest

from hotshoe.slots.reference.mlp import GatedMlp


def test_the_reference_passes(defects) -> None:
    assert defects("gated_mlp", GatedMlp) == []


def up_before_gate(self, tensors):
    GatedMlp.load_gate_up(self, {kind: parts[::-1] for kind, parts in tensors.items()})


def no_bias(self, tensors):
    zeros = [part * 0 for part in tensors.get("bias", [])]
    GatedMlp.load_gate_up(self, {**tensors, "bias": zeros})


@pytest.mark.parametrize("load", [up_before_gate, no_bias])
def test_weights_that_are_loaded_wrongly(finds, load) -> None:
    assert finds("gated_mlp", type("Mutant", (GatedMlp,), {"load_gate_up": load}))


def no_activation(self, x):
    gate, up = self._gate_up(x).chunk(2, dim=1)
    return self._down(gate * up)


def one_column_less(self, x):
    inner = self._activation(self._gate_up(x))
    if not isinstance(inner, tuple):
        inner[:, -1] = 0
    return self._down(inner)


def packed_rows(self, x):
    return GatedMlp.__call__(self, x.as_strided(x.shape, (x.shape[1], 1)))


def overwriting(self, x):
    y = GatedMlp.__call__(self, x)
    x.mul_(2)
    return y


@pytest.mark.parametrize("call", [no_activation, one_column_less, packed_rows, overwriting])
def test_blocks_that_compute_something_else(finds, call) -> None:
    assert finds("gated_mlp", type("Mutant", (GatedMlp,), {"__call__": call}))


def test_rows_with_nan_that_become_numbers(defects) -> None:
    def healthy(self, x):
        return GatedMlp.__call__(self, x.nan_to_num())

    found = defects("gated_mlp", type("Mutant", (GatedMlp,), {"__call__": healthy}))
    assert any("instead of nan" in defect for defect in found)
