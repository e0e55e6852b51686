"""The cases of compressed_attention find whoever attends to other rows or entries."""

import pytest

from hotshoe.slots.reference.compressed import CompressedAttention


def test_the_reference_passes(defects) -> None:
    assert defects("compressed_attention", CompressedAttention) == []


def _with(**changes):
    """Build a reference some of whose arguments are changed."""

    class Changed(CompressedAttention):
        def __call__(self, q, cache, prepared, entries, sinks, cos_sin):
            named = {"entries": entries, "sinks": sinks, "cos_sin": cos_sin}
            for name, change in changes.items():
                named[name] = change(named[name])
            return super().__call__(q, cache, prepared, **named)

    return Changed


def _fewer(entries):
    if entries is None or entries[2] is None or entries[2].shape[1] < 2:
        return entries
    return (*entries[:2], entries[2][:, :-1])


MUTANTS = {
    "no sinks": _with(sinks=lambda sinks: sinks - 1e9),
    "not rotated back": _with(cos_sin=lambda table: table[:1].expand_as(table)),
    "missing as first": _with(
        entries=lambda e: e if e is None or e[2] is None else (*e[:2], e[2].clamp(min=0))
    ),
    "one less": _with(entries=_fewer),
    "of the first request": _with(entries=lambda e: e and (e[0], _first(e[1]), e[2])),
}


def _first(step):
    import copy

    other = copy.copy(step)
    other.block_table = step.block_table[:1].expand_as(step.block_table)
    return other


@pytest.mark.parametrize("name", MUTANTS)
def test_other_rows(finds, name) -> None:
    assert finds("compressed_attention", MUTANTS[name])


@pytest.mark.parametrize("fields", [{"window": 11}, {"scale": 0.1}, {"rope_dim": 8}], ids=str)
def test_overlooked_fields(finds, blind, fields) -> None:
    assert finds("compressed_attention", blind("compressed_attention", **fields))
