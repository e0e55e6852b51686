"""What becomes of each tensor of a checkpoint: which operation holds it, and in which form.

For `explain`: read off a weight table that was never filled, and the headers of the files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hotshoe.errors import CheckpointError

if TYPE_CHECKING:
    from hotshoe.layers.weights import WeightTable
    from hotshoe.loader.sources import Stored
    from hotshoe.models.model_file import ModelFile

UNUSED = "not used by this architecture"
MISSING = "missing in the checkpoint"
ELSEWHERE = "held by other ranks"
UNKNOWN = "unknown to this architecture"
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class WeightFate:
    """One tensor, or all that are alike in other layers.

    Attributes:
        name: As the checkpoint calls it; "*" stands for any number in a summary.
        shape: Of the whole tensor; empty where it is not expected.
        holder: Slot and candidate; empty where nobody holds it.
        part: Of the holder's weights, and rows of it on the first rank.
        form: How numbers are kept, or what is wrong.
        count: How many are alike.
        stored: The type that the file has, and bits of it for each number; empty where no file
            was looked at.
    """

    name: str
    shape: tuple[int, ...] = ()
    holder: str = ""
    part: str = ""
    form: str = ""
    count: int = 1
    stored: str = ""


def fates(
    table: WeightTable, place: Path | ModelFile, load_format: str
) -> tuple[list[WeightFate], str]:
    """Say what becomes of every tensor.

    Args:
        table: Of a model that was built.
        place: The model directory or file.
        load_format: As in the configuration; of "dummy", no files are looked at.

    Returns:
        The fates by name, and why no files could be looked at; "" if they were.
    """
    names, note, stored = None, "", None
    if load_format == "dummy":
        note = "no files are read: the weights are random (load_format dummy)"
    else:
        from hotshoe.loader.sources import Described, source_of

        try:
            source = table.decoded(source_of(place))
            names = {table.known_as(name): name for name in source.names()}
            stored = source.stored if isinstance(source, Described) else None
        except CheckpointError as error:
            note = f"no files are read: {error}"
    found = [*_expected(table, names), *_others(table, names or {})]
    if stored is None:
        return found, note
    return [_with_stored(fate, stored) for fate in found], note


def _with_stored(fate: WeightFate, stored: Callable[[str], Stored]) -> WeightFate:
    """Add what the file holds, if it holds the tensor."""
    if fate.form == MISSING or not fate.shape:
        return fate
    kind, nbytes = stored(fate.name)
    return replace(fate, stored=f"{kind}, {8 * nbytes / math.prod(fate.shape):.3g} bits")


def _expected(table: WeightTable, names: dict[str, str] | None) -> Iterator[WeightFate]:
    for known, expected in table.expected.items():
        name, shape = (names or {}).get(known, known), expected.shape
        if names is not None and known not in names:
            yield WeightFate(name, shape, form=MISSING)
            continue
        for place in expected.places:
            if place is None:
                yield WeightFate(name, shape, form="held by a layer that does not tell")
                continue
            holder = f"{place.holder.slot}/{place.holder.candidate}"
            first, end = place.rows
            part = f"{place.part}[{first}:{end}]"
            yield WeightFate(name, shape, holder, part, place.holder.form)


def _others(table: WeightTable, names: dict[str, str]) -> Iterator[WeightFate]:
    for known, name in names.items():
        if known in table.expected:
            continue
        try:
            table.wants(known)
        except CheckpointError:
            yield WeightFate(name, form=UNKNOWN)
        else:
            yield WeightFate(name, form=ELSEWHERE if table.is_elsewhere(known) else UNUSED)


def summary(found: Iterable[WeightFate]) -> list[WeightFate]:
    """Put together those whose names differ in numbers alone, and that are alike in the rest."""
    counts: dict[WeightFate, int] = {}
    for fate in found:
        name, part = (NUMBER.sub("*", text) for text in (fate.name, fate.part))
        alike = replace(fate, name=name, part=part)
        counts[alike] = counts.get(alike, 0) + 1
    return [replace(alike, count=count) for alike, count in counts.items()]
