"""The tensors of GGUF files as a source of weights, in the form that layers want."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hotshoe.loader.sources import Stored
from hotshoe_models.gguf.blocks import dequantize
from hotshoe_models.gguf.family import Family, unpaired
from hotshoe_models.gguf.header import Header, TensorInfo
from hotshoe_models.gguf.names import BOTH
from hotshoe_models.gguf.storage import BLOCKS, SCALE, WEIGHT

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
#: Of all experts of a model; the largest known has a quarter of that.
MAX_MATRICES = 2**18
#: How names end of factors of matrices, and of x, which stays as it is.
FACTOR, X_FACTOR = f".{SCALE}", ".input_scale"
#: Matrices whose rows lie in pairs, if a family's do.
PAIRED = (".q_proj.", ".k_proj.")


class Place(NamedTuple):
    """Where a checkpoint's tensor lies: in a file's tensor, or in an expert's part of it.

    Attributes:
        expert: Its number; None for the whole tensor.
        rows: Of the tensor or of the expert, from the first to behind the last; None for all.
        factor: By which the numbers are multiplied.
    """

    header: Header
    name: str
    expert: int | None = None
    rows: tuple[int, int] | None = None
    factor: float = 1.0

    @property
    def info(self) -> TensorInfo:
        """Type, shape and bytes of this part of the file."""
        info = self.header.tensors[self.name]
        if self.expert is not None:
            info = _part(info, self.expert, self.expert + 1)._replace(shape=info.shape[1:])
        if self.rows is None:
            return info
        begin, end = self.rows
        return _part(info, begin, end)._replace(shape=(end - begin, *info.shape[1:]))

    @property
    def is_last(self) -> bool:
        """Whether nothing more of the file's tensor follows."""
        shape = self.header.tensors[self.name].shape
        rows = shape[0] if self.expert is None else shape[1]
        return self.expert in (None, shape[0] - 1) and (self.rows is None or self.rows[1] == rows)


def _part(info: TensorInfo, begin: int, end: int) -> TensorInfo:
    """Return where some rows of a tensor lie, or some of its matrices."""
    size = (info.end - info.begin) // info.shape[0]
    return info._replace(begin=info.begin + begin * size, end=info.begin + end * size)


def places_of(headers: Sequence[Header], family: Family) -> dict[str, Place]:
    """Return where tensors lie, by the names of the checkpoint that the files were made from.

    Those of experts come last, expert by expert, so that few wait for the rest of theirs.

    Raises:
        CheckpointError: There are more matrices of experts than can be, or matrices and factors of
            them do not fit each other.
    """
    found: dict[str, Place] = {}
    blocks: dict[str, list[tuple[str, Place, list[float]]]] = {}
    matrices, factors = 0, _factors_of(headers, family)
    for header in headers:
        for name, info in header.tensors.items():
            known = family.known_as(name)
            if known is None or known.endswith((FACTOR, X_FACTOR)):
                continue
            block, of_experts, _ = known.partition("{}")
            each = factors.get(known.removesuffix(f".{WEIGHT}"), [1.0])
            stacked = known != name and bool(of_experts) and len(info.shape) > 1
            stack = _stack(header, name, known, family.rows_of(name), stacked)
            if not stacked:
                found |= {part: place._replace(factor=each[0]) for part, place in stack}
                continue
            blocks.setdefault(block, []).extend((part, place, each) for part, place in stack)
            matrices += info.shape[0] * len(stack)
            if matrices > MAX_MATRICES:
                raise header.bad(f"it has more than {MAX_MATRICES} matrices of experts")
    return found | dict(chain.from_iterable(map(_by_expert, blocks.values())))


def _stack(
    header: Header, name: str, known: str, sizes: Sequence[int], stacked: bool
) -> list[tuple[str, Place]]:
    """Return the matrices that a tensor has, or has for each expert.

    Args:
        sizes: Rows of each, if there are several; none where they are equally many.
        stacked: It has the matrices of experts.

    Raises:
        CheckpointError: It has other rows.
    """
    stem, _, kind = known.rpartition(".")
    before, _, last = stem.rpartition(".")
    parts = last.split(BOTH)
    if len(parts) == 1:
        return [(known, Place(header, name))]
    rows = header.tensors[name].shape[stacked]
    sizes = sizes or [rows // len(parts)] * len(parts)
    if sum(sizes) != rows:
        raise header.bad(f"{name[:200]} has {rows} rows, which are not those of {len(parts)} parts")
    ends = [*accumulate(sizes)]
    places = (Place(header, name, rows=(e - s, e)) for s, e in zip(sizes, ends, strict=True))
    return [(f"{before}.{part}.{kind}", place) for part, place in zip(parts, places, strict=True)]


def _listed(header: Header, family: Family) -> dict[str, float]:
    """Return weights of one number, which metadata list for all layers.

    Raises:
        CheckpointError: They are no lists of finite numbers.
    """
    found: dict[str, float] = {}
    for key, part in family.listed.items():
        values = header.values.get(key, [])
        if not isinstance(values, list) or not all(
            type(value) is float and math.isfinite(value) for value in values
        ):
            raise header.bad(f"{key} is no list of numbers")
        found |= {f"{family.layer.format(i)}{part}": value for i, value in enumerate(values)}
    return found


def _factors_of(headers: Sequence[Header], family: Family) -> dict[str, list[float]]:
    """Return the factors of matrices, one number or one for each expert.

    Raises:
        CheckpointError: It is something else.
    """
    found: dict[str, list[float]] = {}
    for header in headers:
        for name, info in header.tensors.items():
            known = family.known_as(name)
            if known is None or not known.endswith(FACTOR):
                continue
            if info.type.name != "F32" or math.prod(info.shape) > MAX_MATRICES:
                raise header.bad(f"{name[:200]} is no list of factors in F32")
            count = (info.end - info.begin) // 4
            values = torch.frombuffer(
                header.map, dtype=torch.float32, offset=info.begin, count=count
            )
            if not bool(values.isfinite().all()):
                raise header.bad(f"{name[:200]} holds numbers that are NaN or infinite")
            found[known.removesuffix(FACTOR)] = values.tolist()
    return found


def _by_expert(stacks: Sequence[tuple[str, Place, list[float]]]) -> Iterator[tuple[str, Place]]:
    """Yield the parts of tensors that hold all experts.

    Raises:
        CheckpointError: There are other numbers of factors.
    """
    counts = [place.header.tensors[place.name].shape[0] for _, place, _ in stacks]
    for (_, place, each), count in zip(stacks, counts, strict=True):
        if len(each) not in (1, count):
            raise place.header.bad(f"{place.name[:200]} has {len(each)} factors")
    for expert in range(max(counts)):
        for (known, place, each), count in zip(stacks, counts, strict=True):
            if expert < count:
                factor = each[expert % len(each)]
                part = place._replace(expert=expert, factor=factor)
                yield known.replace("{}", str(expert)), part


class Tensors:
    """Tensors by the names of the checkpoint that the files were made from.

    Args:
        headers: Of all files.
        family: Whose names they have.
        config: What config.json would hold.
        dtype: Of numbers that are packed in the file.
        packed: Names of matrices that are wanted as bytes, their rows one after the other.
    """

    def __init__(
        self,
        headers: list[Header],
        family: Family,
        config: Mapping[str, Any],
        dtype: torch.dtype,
        packed: Collection[str] = (),
    ) -> None:
        self._family, self._config, self._dtype = family, config, dtype
        self._packed = packed
        self._home: dict[str, Place] = {}
        self._listed = _listed(headers[0], family)
        for name, place in places_of(headers, family).items():
            blocks, scale = (f"{name.removesuffix(WEIGHT)}{part}" for part in (BLOCKS, SCALE))
            for part in (blocks, scale):  # before the same tensor's numbers, behind which it goes
                if part in packed:
                    self._home[part] = place
            self._home[name] = place

    def names(self) -> Iterable[str]:
        """Return the checkpoint's names, file by file, each in the order of its data."""
        return [*self._home, *self._listed]

    def tensor(self, name: str) -> Tensor:
        """Return a tensor: a view of the file where it holds plain numbers, as they are wanted."""
        if name in self._listed:
            return torch.tensor([self._listed[name]])
        place = self._home[name]
        packed = name in self._packed  # which is multiplied where it is taken apart
        if packed and name.endswith(FACTOR):
            return torch.full((place.info.shape[0], 1), place.factor)
        found = self._rows(place) if packed else self._numbers(place)
        if place.factor != 1 and not packed:
            found = found * place.factor
        turn = next((turn for part, turn in self._family.turns.items() if part in name), None)
        if turn is not None:
            return turn(found, self._config)
        if self._family.norm_offset and name.endswith("norm.weight"):
            return found - self._family.norm_offset
        paired = self._family.pairs and any(part in name for part in PAIRED)
        return unpaired(found, self._config["head_dim"]) if paired else found

    def taken(self, name: str) -> None:
        """Let go of the file's pages up to there."""
        place = self._home.get(name)
        if place is not None and place.is_last and name.rpartition(".")[2] not in (BLOCKS, SCALE):
            place.header.release_through(place.name)

    def stored(self, name: str) -> Stored:
        """Return type and size in the file."""
        if name in self._listed or (name in self._packed and name.endswith(FACTOR)):
            return Stored("F32", 4)
        info = self._home[name].info
        return Stored(info.type.name, info.end - info.begin)

    def _rows(self, place: Place) -> Tensor:
        """Return the bytes of a matrix [rows, bytes of a row]."""
        _, shape, begin, end = place.info
        data = place.header.map
        raw = torch.frombuffer(data, dtype=torch.uint8, offset=begin, count=end - begin)
        return raw.view(math.prod(shape[:-1]), -1)

    def _numbers(self, place: Place) -> Tensor:
        kind, shape, begin, end = place.info
        data = place.header.map
        if kind.name in PLAIN and begin % kind.nbytes == 0:
            dtype, count = PLAIN[kind.name], (end - begin) // kind.nbytes
            return torch.frombuffer(data, dtype=dtype, offset=begin, count=count).view(shape)
        raw = torch.frombuffer(data, dtype=torch.uint8, offset=begin, count=end - begin)
        if kind.name in PLAIN:  # an alignment below the size of a number
            return raw.clone().view(PLAIN[kind.name]).view(shape)
        blocks = raw.view(-1, kind.nbytes)
        return dequantize(kind.name, blocks, self._dtype, place.name).view(shape)
