"""Feeds a model's weight table: the whole of it at the start, and new values later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError, EngineError, HotshoeError
from hotshoe.layers import WeightTable
from hotshoe.layers.weights import HOST
from hotshoe.loader import checked
from hotshoe.loader.ahead import Ahead
from hotshoe.loader.files import checkpoint_files
from hotshoe.loader.sources import Dummy, Files, TensorSource, source_of
from hotshoe.models.model_file import ModelFile
from hotshoe.slots import TransferOp

#: Values that are looked at together.
CHUNK = 2**22


class Target(NamedTuple):
    """Where weights go.

    Attributes:
        device: Where layers have them.
        transfer: Copies to the device what is read ahead; None to read as layers ask.
    """

    device: str
    transfer: TransferOp | None = None


HOST_TARGET = Target(HOST.type)


def load_weights(
    table: WeightTable,
    place: Path | ModelFile,
    load_format: str,
    dtype: torch.dtype,
    seed: int,
    target: Target = HOST_TARGET,
    check_finite: bool | None = False,
) -> None:
    """Fill the table.

    Args:
        table: What the model expects.
        place: The model directory or file; not looked at for dummy weights.
        load_format: "safetensors" or "dummy".
        dtype: Type of dummy weights, and of what a file has packed.
        seed: Seed of dummy weights.
        target: Where dummy weights are made, and large tensors of files are read to.
        check_finite: Look for NaN and infinity in every weight of a file; None: of files that were
            not found sound before.

    Raises:
        CheckpointError: Missing files or tensors, unexpected tensors, wrong shapes, pickles only;
            NaN or infinity.
    """
    if load_format == "dummy":
        feed(table, Dummy(table.expected, dtype, seed, target.device))
    else:
        files = source_of(place, dtype)
        source, mark = table.decoded(files), None
        if check_finite is None:
            mark = checked.mark_of(_paths(place), _wanted(table, source).values())
            check_finite = not checked.is_marked(mark)
        with ExitStack() as stack:
            if target.transfer is not None and source is files and isinstance(files, Files):
                names = list(_wanted(table, files).values())
                ahead = Ahead(files, names, target.transfer, target.device)
                source = stack.enter_context(ahead)
            feed(table, source, check_finite)
        if check_finite:
            checked.leave(mark)
        if isinstance(place, Path):
            table.reopen = _reopening(table, place, dtype)
    table.check_complete()


def _paths(place: Path | ModelFile) -> Sequence[Path]:
    """Return the files that hold weights."""
    if not isinstance(place, Path):
        return place.paths()
    return checkpoint_files(place) if place.is_dir() else [place]


def _reopening(
    table: WeightTable, place: Path, dtype: torch.dtype
) -> Callable[[], TensorSource | None]:
    """Return what opens a checkpoint again; None once its files are others."""
    files = _paths(place)
    mark = checked.mark_of(files, ())

    def reopen() -> TensorSource | None:
        same = mark is not None and checked.mark_of(files, ()) == mark
        return table.decoded(source_of(place, dtype)) if same else None

    return reopen


def update_weights(table: WeightTable, source: TensorSource, check_only: bool = False) -> None:
    """Overwrite weights in place, all that the source has or, if one does not fit, none.

    Args:
        table: Of a loaded model.
        source: Some or all of the checkpoint's tensors; those that an operation holds stacked
            come together.
        check_only: Refuse what does not fit, and write nothing.

    Raises:
        CheckpointError: A name, shape or type is wrong, or names are missing; nothing was written.
        EngineError: Some were written, but not all.
    """
    source = table.decoded(source)
    wanted = _wanted(table, source)
    if not wanted and any(table.is_elsewhere(table.known_as(name)) for name in source.names()):
        return
    for known, name in wanted.items():
        tensor = source.tensor(name)
        table.check(known, tuple(tensor.shape), tensor.dtype)
    table.check_update(wanted)
    if check_only:
        return
    table.reopen = lambda: None
    try:
        feed(table, source)
    except HotshoeError as error:  # not the caller's any more
        raise EngineError(f"weights were replaced in part: {error}") from error


def feed(table: WeightTable, source: TensorSource, check_finite: bool = False) -> None:
    """Hand over all tensors that the table wants, letting go of each as it was taken.

    Raises:
        CheckpointError: One does not fit, or holds NaN or infinity where that is to be checked.
    """
    for known, name in _wanted(table, source).items():
        tensor = source.tensor(name)
        if check_finite and not is_finite(tensor):
            raise CheckpointError(f"{name} holds NaN or infinity; fetch or export it again")
        table.feed(known, tensor)
        source.taken(name)


def is_finite(tensor: Tensor) -> bool:
    """Tell whether no value is NaN or infinite, with memory for a few of them at a time."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    for part in torch.split(tensor.reshape(-1), CHUNK):
        values = part.float() if part.dtype.itemsize == 1 else part
        low, high = values.aminmax()  # which NaN reaches
        if not (low.isfinite() and high.isfinite()):
            return False
    return True


def _wanted(table: WeightTable, source: TensorSource) -> dict[str, str]:
    """Return names of the source by the names that layers know them by, in the source's order.

    Raises:
        CheckpointError: A name is unknown, or two of them mean the same.
    """
    wanted: dict[str, str] = {}
    for name in source.names():
        known = table.known_as(name)
        if table.wants(known) and wanted.setdefault(known, name) != name:
            raise CheckpointError(f"{name} and {wanted[known]} are the same weight; keep one")
    return wanted
