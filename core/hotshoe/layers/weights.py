"""The table of weights that a model expects, filled from a checkpoint tensor by tensor.

A layer says which checkpoint names it wants, of which shape, and what to do with each; the loader
feeds whatever order the files have. The table lives on after loading: it says which operation holds
a tensor, which part of it and in which form, and takes new values for what is there. Nothing here
reads files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError, RequestError
from hotshoe.layers.device_memory import unmovable
from hotshoe.layers.formats import FLOATS
from hotshoe.layers.stacks import Parts, unstacked

if TYPE_CHECKING:
    from hotshoe.layers.formats import WeightFormat
    from hotshoe.loader.sources import TensorSource

Sink = Callable[[Tensor], None]
#: The memory of a host, whatever computes.
HOST = torch.device("cpu")
#: Where a quantized checkpoint says which tensors it has of a matrix.
SAID = "quantization_config (in config.json or hf_quant_config.json: its form, its layers)"


@dataclass(frozen=True, slots=True, eq=False)
class Holder:
    """An operation, or a layer, that has weights.

    Attributes:
        slot: The slot, such as `linear`.
        candidate: The implementation that serves it.
        form: How it keeps numbers, in words: "bfloat16", "int8 by channel".
        state: Returns what it keeps, by name, as it lies on the device: to be overwritten in place
            only. None where the implementation does not tell, or for another reason.
        why_not: The reason of None.
        weight_bytes: What each number of its matrices takes, with a share of their scales; None
            where all that it holds is of the type `form`.
    """

    slot: str
    candidate: str
    form: str
    state: Callable[[], Mapping[str, Tensor]] | None
    weight_bytes: float | None = None
    why_not: str = "does not tell its state"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a checkpoint tensor goes.

    Attributes:
        part: Of the holder's state: "weight", "gate_up.weight". A kernel that packs its numbers
            has them under another name.
        rows: First and last + 1 among the rows of that part, counted as outputs of this rank.
        needs: Names that have to come with it, such as those of q, k and v with each other.
        numbers: Numbers of a matrix that the whole tensor stands for, which may be packed in fewer
            elements; 0 of what comes with a matrix, such as scales. None: as many as elements.
    """

    holder: Holder
    part: str
    rows: tuple[int, int]
    needs: tuple[str, ...]
    numbers: int | None = None


@dataclass(frozen=True, slots=True)
class ExpectedWeight:
    """One wanted tensor. Several layers may want the same one (tied embeddings).

    Attributes:
        shape: Of the whole tensor.
        dtypes: Types that it may have.
        sinks: What takes it.
        places: Where it goes; of a sink that does not say, None.
        drawn: As in `TensorSpec`.
    """

    shape: tuple[int, ...]
    dtypes: frozenset[torch.dtype]
    sinks: tuple[Sink, ...]
    places: tuple[Place | None, ...]
    drawn: Callable[[Tensor], Tensor] | None = None


class WeightTable:
    """Expected weights by checkpoint name.

    Attributes:
        decode: Puts a checkpoint's tensors together before they are looked at; see `WeightFormat`.
        quantized: The checkpoint has a `quantization_config`, which may be what is wrong.
        reopen: Opens the checkpoint that was loaded last; None where that are no files, or others
            by now, or weights were replaced since.
    """

    def __init__(self) -> None:
        self.decode: Callable[[TensorSource], TensorSource] | None = None
        self.quantized = False
        self.expected: dict[str, ExpectedWeight] = {}
        self._elsewhere: list[re.Pattern[str]] = []
        self._ignored: list[tuple[re.Pattern[str], str]] = []
        #: Names that were met but are not used, by the reason, of those that have one.
        self.unused: dict[str, set[str]] = {}
        self._renames: list[tuple[re.Pattern[str], str]] = []
        self._kept: set[str] = set()
        self._missing: dict[str, None] = {}
        self._stacks: dict[str, Parts] = {}
        self._transposed: set[str] = set()
        self._interleaved: set[str] = set()
        self.reopen: Callable[[], TensorSource | None] = lambda: None

    def follow(self, format: WeightFormat) -> None:
        """Take from a format what it says of all of a checkpoint's tensors."""
        self.decode = format.decode
        self.ignore(format.unused)
        for pattern, replacement in format.renames:
            self.rename(pattern, replacement)

    def expect(
        self,
        name: str,
        shape: tuple[int, ...],
        sink: Sink,
        dtypes: frozenset[torch.dtype] = FLOATS,
        place: Place | None = None,
        drawn: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Ask for a tensor; `sink` may keep it, and must not write to it.

        A sink with a place may be called again, with new values: it then overwrites the holder's
        state where that lies, and keeps nothing of the tensor.
        """
        known = self.expected.get(name) or ExpectedWeight(shape, dtypes, (), ())
        assert known.shape == shape, f"{name} is wanted in two shapes"
        sinks, places = (*known.sinks, sink), (*known.places, place)
        dtypes = known.dtypes & dtypes
        self.expected[name] = ExpectedWeight(shape, dtypes, sinks, places, drawn or known.drawn)
        self._missing[name] = None

    def optional(self, name: str) -> None:
        """Do without an expected tensor where the checkpoint lacks it."""
        self._missing.pop(name, None)

    def ignore(self, patterns: Iterable[str], why: str = "") -> None:
        """Name (by regular expression) checkpoint tensors that this model does not use.

        With a reason, such as "layers that predict further tokens", they are counted in `unused`.
        """
        self._ignored.extend((re.compile(pattern), why) for pattern in patterns)

    def notice(self) -> dict[str, str]:
        """Return the line of start-up about unused tensors; empty if none has a reason."""
        told = [f"{len(names)} tensors of {why}" for why, names in self.unused.items()]
        return {"unused weights": " and ".join(told)} if told else {}

    def elsewhere(self, patterns: Iterable[str]) -> None:
        """Name, by regular expression, checkpoint tensors that other ranks hold."""
        self._elsewhere.extend(re.compile(pattern) for pattern in patterns)

    def is_elsewhere(self, name: str) -> bool:
        """Tell whether other ranks hold a tensor, and this one does not."""
        found = any(pattern.search(name) for pattern in self._elsewhere)
        return found and name not in self.expected

    def rename(self, pattern: str, replacement: str) -> None:
        """Let checkpoint names that match a regular expression stand for others, as `re.sub`."""
        self._renames.append((re.compile(pattern), replacement))

    def keep_names(self) -> None:
        """Let names that layers ask for be what they are, where expressions would make of them
        what nobody asks for. Values of dummy loads and of trainers come by these names."""
        self._kept = {name for name in self.expected if self.known_as(name) not in self.expected}

    @property
    def num_renames(self) -> int:
        """How many expressions `known_as` goes through."""
        return len(self._renames)

    def decoded(self, source: TensorSource) -> TensorSource:
        """Return a checkpoint as layers know it.

        Raises:
            CheckpointError: Tensors that belong together are not all there.
        """
        plain = source if self.decode is None else self.decode(source)
        if not self._stacks:
            return plain
        turned = self._transposed, self._interleaved
        return unstacked(plain, self.known_as, self._stacks, *turned)

    def unstack(
        self, name: str, parts: Parts, transposed: bool = False, interleaved: bool = False
    ) -> None:
        """Name a tensor of all experts that some checkpoints have in the place of single matrices.

        Args:
            name: Of a tensor [num_experts, rows, columns], or [num_experts * rows, columns].
            parts: For each expert the names that its rows are asked for by, in equal parts.
            transposed: An expert has [columns, rows].
            interleaved: Rows of an expert's matrices take turns.
        """
        self._stacks[name] = parts
        if transposed:
            self._transposed.add(name)
        if interleaved:
            self._interleaved.add(name)

    def known_as(self, name: str) -> str:
        """Return the name that layers know a checkpoint's tensor by."""
        if name in self._kept:
            return name
        for pattern, replacement in self._renames:
            name = pattern.sub(replacement, name)
        return name

    def wants(self, name: str) -> bool:
        """Tell whether to read a tensor.

        Raises:
            CheckpointError: The name is neither expected nor declared unused.
        """
        if name in self.expected:
            return True
        if any(pattern.search(name) for pattern in self._elsewhere):
            return False
        for pattern, why in self._ignored:
            if pattern.search(name):
                if why:
                    self.unused.setdefault(why, set()).add(name)
                return False
        if not self.quantized and self._is_beside(name):
            raise CheckpointError(
                f"the checkpoint holds {name}, so it is quantized, though config.json does not say "
                "so; put quantization_config back there (and leave it out of --hf-overrides), or "
                "use the unquantized checkpoint"
            )
        first = f"{SAID}, then " * self.quantized
        raise CheckpointError(
            f"the checkpoint holds {name}, which this architecture does not have; "
            f"check {first}`architectures` and the layer counts in config.json"
        )

    def _is_beside(self, name: str) -> bool:
        """Tell whether an unknown tensor is part of a matrix that is wanted as plain numbers."""
        matrix, _, part = name.rpartition(".")
        single = f"{matrix}.weight" in self.expected or matrix in self.expected
        stacked = any(name.startswith(f"{stack}_") for stack in self._stacks)
        return part not in ("weight", "bias") and (single or stacked)

    def check(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Refuse a tensor that is not the expected one.

        Raises:
            CheckpointError: The shape differs from the configuration's in more than axes of one
                element, or the type does not fit.
        """
        expected = self.expected[name]
        if _essential(shape) != _essential(expected.shape):
            raise CheckpointError(
                f"{name} has shape {list(shape)}, but config.json means "
                f"{list(expected.shape)}; checkpoint and configuration do not belong together"
            )
        if dtype not in expected.dtypes:
            kind = _type_name(dtype)
            if expected.dtypes == FLOATS:
                raise CheckpointError(
                    f"{name} is of type {kind}, though config.json does not say that it is "
                    "quantized; use the unquantized checkpoint, with --quantization if wanted"
                )
            fitting = " or ".join(sorted(map(_type_name, expected.dtypes)))
            raise CheckpointError(f"{name} is of type {kind}, but {fitting} is expected")

    def feed(self, name: str, tensor: Tensor) -> None:
        """Hand a tensor to the layers that want it.

        Raises:
            CheckpointError: As for `check`.
        """
        self.check(name, tuple(tensor.shape), tensor.dtype)
        self._missing.pop(name, None)
        expected = self.expected[name]
        for sink in expected.sinks:
            sink(tensor if tensor.shape == expected.shape else tensor.reshape(expected.shape))

    def check_complete(self) -> None:
        """Refuse a checkpoint that lacked tensors.

        Raises:
            CheckpointError: Names the first missing tensors.
        """
        if self._missing:
            hint = f"; check {SAID}" * self.quantized
            raise CheckpointError(f"the checkpoint lacks {_listed(self._missing)}{hint}")

    def where(self, name: str) -> tuple[Place, ...]:
        """Return the places of a checkpoint tensor; none of one that is not expected."""
        expected = self.expected.get(self.known_as(name))
        return tuple(p for p in expected.places if p is not None) if expected else ()

    def holders(self) -> list[Holder]:
        """Return all operations with weights, each once."""
        places = (p for e in self.expected.values() for p in e.places if p is not None)
        return list(dict.fromkeys(place.holder for place in places))

    def check_update(self, names: Iterable[str]) -> None:
        """Refuse new values for part of what an operation can only take together.

        Raises:
            CheckpointError: A name lacks others, or its holder cannot be overwritten in place.
        """
        given = set(names)
        if not given:
            raise CheckpointError("the update holds no tensor that this model uses")
        for name in given:
            for place in self.expected[name].places:
                if place is None or place.holder.state is None:
                    who = "its layer does not tell its state"
                    if place is not None:
                        who = f"{_called(place.holder)} {place.holder.why_not}"
                    raise CheckpointError(
                        f"{name} cannot be replaced in place: {who}; start the engine anew"
                    )
                needs = set(place.needs)
                if place.holder.slot == "embedding":  # whose numbers a product may have otherwise
                    needs |= {n for n in self.expected if _matrix(n) == _matrix(name)}
                if missing := needs - given:
                    raise CheckpointError(
                        f"the update holds {name} but not {_listed(missing)}, "
                        f"which {_called(place.holder)} takes together with it"
                    )

    def on_device(self) -> list[torch.UntypedStorage]:
        """Return the memory of what holders keep, each piece once, where the host is another.

        Raises:
            RequestError: A holder does not tell its state, or has no memory that PyTorch knows.
        """
        storages: dict[int, torch.UntypedStorage] = {}
        for holder in self.holders():
            if holder.state is None:
                raise RequestError(
                    f"the weights cannot be moved: {_called(holder)} {holder.why_not}; "
                    "use level 2, which reads the checkpoint again",
                    "level",
                )
            for tensor in holder.state().values():
                if tensor.device != HOST:
                    storage = _memory(tensor)
                    storages[storage.data_ptr()] = storage
        return list(storages.values())


def _matrix(name: str) -> str:
    """Return a tensor's name without its last part."""
    return name.rpartition(".")[0]


def _memory(tensor: Tensor) -> torch.UntypedStorage:
    """Return the memory of a tensor.

    Raises:
        RequestError: PyTorch knows of none.
    """
    try:
        storage = tensor.untyped_storage()
        if storage.data_ptr():
            return storage
    except RuntimeError:  # a device may have no storages that PyTorch knows
        pass
    raise unmovable(tensor.device)


def _essential(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Leave out axes of one element, which writers of scales may add."""
    return tuple(size for size in shape if size != 1)


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _called(holder: Holder) -> str:
    return f"candidate {holder.candidate} of slot {holder.slot}"


def _listed(missing: Iterable[str]) -> str:
    """Name the first three."""
    names = sorted(missing)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"
