"""The cases of compress find whoever makes entries of other tokens, or writes elsewhere."""

from dataclasses import replace

import pytest
import torch

from hotshoe.slots.reference.compressed import Compress


def test_the_reference_passes(defects) -> None:
    assert defects("compress", Compress) == []


@pytest.mark.parametrize("fields", [{"overlap": False}, {"norm_eps": 1.0}], ids=str)
def test_overlooked_fields(finds, blind, fields) -> None:
    if "overlap" in fields:  # another width of rows cannot be computed at all

        class OwnGroupAlone(Compress):
            def _gathered(self, tokens, table, last, bias):
                values, gates = super()._gathered(tokens, table, last, bias)
                if self._spec.overlap:
                    gates[:, : self._spec.group] = -torch.inf
                return values, gates

        assert finds("compress", OwnGroupAlone)
    else:
        assert finds("compress", blind("compress", **fields))


class NoBias(Compress):
    def __call__(self, tokens, entries, steps, bias, norm, cos_sin):
        super().__call__(tokens, entries, steps, bias * 0, norm, cos_sin)


class NotRotated(Compress):
    def __call__(self, tokens, entries, steps, bias, norm, cos_sin):
        super().__call__(tokens, entries, steps, bias, norm, cos_sin[:1].expand_as(cos_sin))


class BlocksOfTheOtherCache(Compress):
    def __call__(self, tokens, entries, steps, bias, norm, cos_sin):
        super().__call__(tokens, entries, (steps[0], steps[0]), bias, norm, cos_sin)


class LowPrecision(Compress):
    def __call__(self, tokens, entries, steps, bias, norm, cos_sin):
        super().__call__(tokens, entries, steps, bias.bfloat16().float(), norm, cos_sin)


class NormedAnyway(Compress):
    def __call__(self, tokens, entries, steps, bias, norm, cos_sin):
        if norm is None:
            self._spec = replace(self._spec, norm_eps=1e-6)
            norm = torch.ones(self._spec.head_dim)
        super().__call__(tokens, entries, steps, bias, norm, cos_sin)


@pytest.mark.parametrize(
    "build", [NoBias, NotRotated, BlocksOfTheOtherCache, LowPrecision, NormedAnyway]
)
def test_other_entries(finds, build) -> None:
    assert finds("compress", build)
