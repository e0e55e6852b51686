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
from hotshoe.slots.sizes import TYPE_BITS

if TYPE_CHECKING:
    from hotshoe.layers.weights import Place, WeightTable
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
            was looked at. Those of a packed matrix are counted, not the elements that hold them.
        weight_bytes: What each number takes as it is held, with a share of its scales, as the form
            says: zero points and padding are not in it. None of what comes with a matrix, and where
            nobody tells.
    """

    name: str
    shape: tuple[int, ...] = ()
    holder: str = ""
    part: str = ""
    form: str = ""
    count: int = 1
    stored: str = ""
    weight_bytes: float | None = None


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
    return [*_expected(table, names, stored), *_others(table, names or {})], note


def _expected(
    table: WeightTable, names: dict[str, str] | None, stored: Callable[[str], Stored] | None
) -> Iterator[WeightFate]:
    for known, expected in table.expected.items():
        name, shape = (names or {}).get(known, known), expected.shape
        if names is not None and known not in names:
            yield WeightFate(name, shape, form=MISSING)
            continue
        held = None if stored is None else stored(name)
        for place in expected.places:
            if place is None:
                form = "held by a layer that does not tell"
                yield WeightFate(name, shape, form=form, stored=_said(held, math.prod(shape)))
                continue
            count = math.prod(shape) if place.numbers is None else place.numbers
            holder = f"{place.holder.slot}/{place.holder.candidate}"
            first, end = place.rows
            part = f"{place.part}[{first}:{end}]"
            form, said = place.holder.form, _said(held, count)
            size = _weight_bytes(place)
            yield WeightFate(name, shape, holder, part, form, stored=said, weight_bytes=size)


def _said(held: Stored | None, count: int) -> str:
    """Return type and bits for each of so many numbers; the type alone where there are none."""
    if held is None:
        return ""
    return f"{held.type}, {8 * held.nbytes / count:.3g} bits" if count else held.type


def _weight_bytes(place: Place) -> float | None:
    """Return what a number takes where it is held; None of what comes with a matrix."""
    holder = place.holder
    if holder.weight_bytes is not None:
        return holder.weight_bytes if place.numbers else None
    bits = TYPE_BITS.get(holder.form)
    return None if bits is None or place.numbers == 0 else bits / 8


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
