"""The mixer without a cache: what it refuses, and that a step is planned once."""

from dataclasses import replace
from types import SimpleNamespace

import torch

from hotshoe.slots import PackedAttentionSpec
from hotshoe_models.packed import PackedMixer, Steps, share

SPEC = PackedAttentionSpec(2, 1, 8, "float32", 0.3, 8)


class Counting:
    """An operation that counts its plans."""

    def __init__(self) -> None:
        self.shapes: list[object] = []

    def prepare(self, shape):
        self.shapes.append(shape)
        return len(self.shapes)

    def __call__(self, qkv, positions, table, plan):
        return qkv + plan


def test_a_step_is_planned_once() -> None:
    op = Counting()
    steps, x = Steps(op), torch.zeros(2)
    first, second = (SimpleNamespace(shape=object(), positions=None) for _ in range(2))
    found = [float(steps(x, batch, x)[0]) for batch in (first, first, second, first)]
    assert found == [1, 1, 2, 3] and op.shapes == [first.shape, second.shape, first.shape]


def test_layers_that_ask_the_same_share_an_operation() -> None:
    mixers = []
    for spec in (SPEC, replace(SPEC, window=4), SPEC):
        mixer = PackedMixer.__new__(PackedMixer)
        mixer.spec, mixer.steps = spec, Steps(Counting())
        mixers.append(mixer)
    share([object(), *mixers])
    assert mixers[0].steps is mixers[2].steps is not mixers[1].steps
