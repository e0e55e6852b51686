"""The cases of moe find whoever chooses, weighs or computes experts wrongly."""

from dataclasses import replace

import pytest
import torch

from hotshoe.slots.reference import moe
from hotshoe.slots.reference.moe import Moe


def test_the_reference_passes(defects) -> None:
    assert defects("moe", Moe) == []


def mutant(**methods) -> type:
    return type("Mutant", (Moe,), methods)


ROUTERS = {
    "scale": lambda r: replace(r, scale=1.0),
    "renormalize": lambda r: replace(r, renormalize=False),
    "groups": lambda r: replace(r, groups=1),
    "group_score": lambda r: replace(r, group_score="max"),
    "jitter": lambda r: replace(r, jitter=r.jitter / 4),
    "scoring": lambda r: replace(r, scoring="softmax"),
}


@pytest.mark.parametrize("field", ROUTERS)
def test_routers_that_overlook_a_field(finds, field) -> None:
    def build(self, spec, facts):
        Moe.__init__(self, replace(spec, router=ROUTERS[field](spec.router)), facts)

    assert finds("moe", mutant(__init__=build))


@pytest.mark.parametrize(
    "changes",
    [{"limit": None}, {"alpha": 1.0}, {"shift": 0.0}, {"activation": "silu"}],
    ids=str,
)
def test_activations_that_overlook_a_field(finds, changes, monkeypatch) -> None:
    whole = moe.activated

    def call(self, x, logits, correction):
        with monkeypatch.context() as patch:
            patch.setattr(moe, "activated", lambda x, spec: whole(x, replace(spec, **changes)))
            return Moe.__call__(self, x, logits, correction)

    assert finds("moe", mutant(__call__=call))


def no_correction(self, x, logits, correction):
    return Moe.__call__(self, x, logits, None)


def correction_counts(self, x, logits, correction):
    if correction is None:
        return Moe.__call__(self, x, logits, None)
    return Moe.__call__(self, x, logits + correction, None)


def packed_rows(self, x, logits, correction):
    return Moe.__call__(self, x.as_strided(x.shape, (x.shape[1], 1)), logits, correction)


def overwriting(self, x, logits, correction):
    y = Moe.__call__(self, x, logits, correction)
    logits.mul_(2)
    return y


def room_for_a_third(self, x, logits, correction):
    """Drop tokens of an expert that has many, as capacity limits in training do."""
    y = Moe.__call__(self, x, logits, correction)
    y[len(y) // 3 + 16 :] = 0
    return y


def one_expert_less(self, x, logits, correction):
    logits = logits.clone()
    if logits.shape[1] > self._spec.top_k:
        logits[:, -1] = -torch.inf
    return Moe.__call__(self, x, logits, correction)


@pytest.mark.parametrize(
    "call",
    [
        no_correction,
        correction_counts,
        packed_rows,
        overwriting,
        room_for_a_third,
        one_expert_less,
    ],
)
def test_mixtures_that_compute_something_else(finds, call) -> None:
    assert finds("moe", mutant(__call__=call))


def test_experts_that_are_loaded_in_another_order(finds) -> None:
    def load(self, expert, tensors):
        Moe.load_down(self, self._spec.num_experts - 1 - expert, tensors)

    assert finds("moe", mutant(load_down=load))


def test_rows_with_nan_that_become_numbers(defects) -> None:
    def healthy(self, x, logits, correction):
        return Moe.__call__(self, x.nan_to_num(), logits.nan_to_num(), correction)

    found = defects("moe", mutant(__call__=healthy))
    assert any("instead of nan" in defect for defect in found)
