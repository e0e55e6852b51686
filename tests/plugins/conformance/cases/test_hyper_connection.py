"""The cases of hyper_connection find whoever mixes otherwise, or overlooks a field."""

import pytest
import torch

from hotshoe.slots.reference.hyper import HyperConnection


def test_the_reference_passes(defects) -> None:
    assert defects("hyper_connection", HyperConnection) == []


@pytest.mark.parametrize(
    "fields",
    [{"eps": 1e-6}, {"norm_eps": 1e-6}, {"iterations": 3}, {"magnitude": 2.0}],
    ids=lambda f: next(iter(f)),
)
def test_overlooked_fields(finds, blind, fields) -> None:
    assert finds("hyper_connection", blind("hyper_connection", **fields))


class Turned(HyperConnection):
    def joined(self, streams, out, gates):
        count = self._spec.count
        if not self._spec.mixes:
            return super().joined(streams, out, gates)
        mix = gates[:, count:].view(-1, count, count).mT.flatten(1)
        return super().joined(streams, out, torch.cat((gates[:, :count], mix), 1))


class OneScale(HyperConnection):
    def __call__(self, streams, block, fn, base, scale):
        return super().__call__(streams, block, fn, base, scale[:1].expand_as(scale))


class NoBias(HyperConnection):
    def __call__(self, streams, block, fn, base, scale):
        return super().__call__(streams, block, fn, base * 0, scale)


class NoEps(HyperConnection):
    def __call__(self, streams, block, fn, base, scale):
        *rest, gates = super().__call__(streams, block, fn, base, scale)
        return *rest, gates if self._spec.mixes else gates - self._spec.eps


class LowPrecision(HyperConnection):
    def __call__(self, streams, block, fn, base, scale):
        return super().__call__(streams, block, fn.bfloat16().float(), base, scale)


@pytest.mark.parametrize("build", [Turned, OneScale, NoBias, NoEps, LowPrecision])
def test_other_streams(finds, build) -> None:
    assert finds("hyper_connection", build)
