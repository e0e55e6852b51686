"""Checkpoints of bitsandbytes: LLM.int8, and blocks of four bits looked up in a table.

Integers stay as they are, with a scale for each row. What a table of sixteen numbers says is no
integer: such a matrix becomes plain numbers before a layer sees it. Sources: Dettmers et al. 2022,
arXiv:2208.07339, and 2023, arXiv:2305.14314; the documentation of bitsandbytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers import FLOATS, Share, Storage, TensorSpec
from hotshoe.loader.sources import Described, Stored, TensorSource
from hotshoe.models.files import parse_json
from hotshoe.slots import QuantSpec
from hotshoe_quantization.fp4 import BYTES
from hotshoe_quantization.stored import (
    Axis,
    Needless,
    Pieces,
    Scheme,
    Shape,
    StoredFormat,
    Without,
    finite,
)
from hotshoe_quantization.values import Values, skips

KINDS = ("nf4", "fp4")
BLOCK_SIZES = tuple(1 << n for n in range(5, 13))
#: A tensor that belongs to a matrix of four bits; the last one says how it is stored.
PART = re.compile(
    r"(?P<weight>.+)\.(?P<part>absmax|quant_map|nested_absmax|nested_quant_map"
    r"|quant_state\.bitsandbytes__\w+)"
)
STATE = "quant_state.bitsandbytes__"
#: A description is a short JSON object.
MAX_STATE_BYTES = 4096
LARGEST = 127.0
#: Of `weight_format`.
ORDER = "says that integers lie in an order that only some GPUs know"
BY_ROW = QuantSpec("int8", "channel")


@dataclass(frozen=True, slots=True)
class Rows:
    """Integers `weight`, and the largest of each row, `SCB`. See `hotshoe_quantization.stored`.

    Columns of x with large values are multiplied apart there. Here x stays as it is: nearer to the
    exact product.
    """

    def storage(self, layer: str, shape: Shape) -> Storage:
        """Return integers of eight bits by row."""
        return Storage(BY_ROW)

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Return integers and scales."""
        integers = frozenset({torch.int8})
        return {
            "weight": Axis().spec(layer, shape, share, integers),
            "SCB": Axis(1, None).spec(layer, shape, share, FLOATS),
        }

    def canonical(self, layer: str, tensors: Pieces) -> Pieces:
        """Let 127 stand for a row's largest value."""
        made = {name: tensors[name] for name in tensors if name != "SCB"}
        largest = finite(layer, "SCB", tensors["SCB"])
        return made | {"weight_scale": [part / LARGEST for part in largest]}


class BitsAndBytes(StoredFormat):
    """See `hotshoe.layers.WeightFormat`.

    Args:
        kind: "int8", "nf4" or "fp4".
        kept: Layers of plain numbers; of four bits, the files say it.
    """

    def __init__(self, kind: str, kept: tuple[str, ...]) -> None:
        scheme = Rows() if kind == "int8" else None

        def choose(layer: str) -> Scheme | None:
            return None if skips(kept, layer) else scheme

        super().__init__(choose)
        self._kind = kind

    def decode(self, source: TensorSource) -> TensorSource:
        """Return a source that has plain numbers for four bits, and the rest as it is."""
        if self._kind != "int8":
            return _Decoded(source, self._kind)
        return Without(source, Needless(lambda name: name.endswith(".weight_format"), ORDER))


@dataclass(frozen=True, slots=True)
class _State:
    """How a matrix of four bits is stored.

    Attributes:
        shape: Of the matrix.
        size: Numbers that share a scale, in rows' order.
        nested_size: Scales that share one of their own, if they do.
        offset: What is added to such scales.
    """

    shape: Shape
    size: int
    nested_size: int | None
    offset: float


class _Decoded:
    """A source whose matrices of four bits are plain numbers.

    Args:
        source: The files'.
        kind: "nf4" or "fp4", as config.json says.

    Raises:
        CheckpointError: A matrix has parts, but not all; or is of the other kind.
    """

    def __init__(self, source: TensorSource, kind: str) -> None:
        self._source = source
        self._parts: dict[str, dict[str, str]] = {}
        self._names, known = [], list(source.names())
        for name in known:
            if found := PART.fullmatch(name):
                self._parts.setdefault(found["weight"], {})[found["part"]] = name
            else:
                self._names.append(name)
        for name, parts in self._parts.items():
            states = [part for part in parts if part.startswith(STATE)]
            if states and states != [STATE + kind]:
                raise CheckpointError(
                    f"{name} is stored as {states[-1].removeprefix(STATE)}, but config.json says "
                    f"bnb_4bit_quant_type {kind}; correct config.json"
                )
            needed = {STATE + kind, "absmax", "quant_map"}
            if {"nested_absmax", "nested_quant_map"} & parts.keys():
                needed |= {"nested_absmax", "nested_quant_map"}
            if missing := sorted(f"{name}.{part}" for part in needed - parts.keys()):
                raise CheckpointError(f"the checkpoint lacks {' and '.join(missing)}")
        if missing := sorted(self._parts.keys() - set(self._names)):
            raise CheckpointError(f"the checkpoint lacks {missing[0]}, but has its scales")
        self._kind = kind

    def names(self) -> Iterable[str]:
        """Return matrices and plain tensors, in the files' order."""
        return self._names

    def tensor(self, name: str) -> Tensor:
        """Return a plain tensor, or a matrix in float32.

        Raises:
            CheckpointError: Parts of a matrix are malformed, or do not belong together.
        """
        tensor = self._source.tensor(name)
        parts = self._parts.get(name)
        if parts is None:
            if tensor.dtype == torch.uint8:
                raise CheckpointError(
                    f"{name} is packed, but the checkpoint lacks {name}.{STATE}{self._kind}"
                )
            return tensor
        held = {part: self._source.tensor(full) for part, full in parts.items()}
        state = _state(parts[STATE + self._kind], held[STATE + self._kind], self._kind)
        codes = tensor.contiguous().view(torch.uint8).flatten()
        count = math.prod(state.shape)
        _check_size(name, codes, -(-count // 2))
        scales = _scales(name, held, state, -(-count // state.size))
        octets = torch.stack((codes >> 4, codes & 15), dim=-1).flatten()[:count]
        numbers = _table(f"{name}.quant_map", held["quant_map"], 16)[octets.int()]
        numbers *= scales.repeat_interleave(state.size)[:count]
        return numbers.view(state.shape)

    def taken(self, name: str) -> None:
        """Let go of a tensor's parts."""
        for part in (name, *self._parts.get(name, {}).values()):
            self._source.taken(part)

    def stored(self, name: str) -> Stored:
        """Return the type, and the size of all parts."""
        if not isinstance(self._source, Described):
            tensor = self._source.tensor(name)
            return Stored(str(tensor.dtype).removeprefix("torch."), tensor.nbytes)
        parts = self._parts.get(name)
        found = self._source.stored(name)
        if parts is None:
            return found
        more = sum(self._source.stored(part).nbytes for part in parts.values())
        return Stored(self._kind, found.nbytes + more)


def _state(name: str, stored: Tensor, kind: str) -> _State:
    """Read how a matrix is stored.

    Raises:
        CheckpointError: It is no such description, or one that contradicts its name.
    """
    text = stored.flatten()
    if text.dtype != torch.uint8 or len(text) > MAX_STATE_BYTES:
        raise CheckpointError(f"{name} must be the bytes of a short JSON object")
    try:
        found = parse_json(bytes(text.tolist()))
    except (ValueError, RecursionError):
        raise CheckpointError(f"{name} is not JSON; fetch the checkpoint again") from None
    values = Values(found, name, "")
    values.one_of((kind,), "quant_type")
    size = values.one_of(BLOCK_SIZES, "blocksize")
    shape = values.get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) != 2
        or any(type(n) is not int or n < 1 for n in shape)
    ):
        values.refuse("shape", f"must be two sizes, not {shape!r}")
    nested, offset = values.get("nested_blocksize"), values.get("nested_offset", default=0.0)
    if nested is not None and (type(nested) is not int or nested < 1):
        values.refuse("nested_blocksize", f"must be a positive integer, not {nested!r}")
    if type(offset) not in (int, float) or not math.isfinite(offset):
        values.refuse("nested_offset", f"must be a finite number, not {offset!r}")
    return _State((shape[0], shape[1]), size, nested, float(offset))


def _scales(name: str, held: Mapping[str, Tensor], state: _State, count: int) -> Tensor:
    """Return the scale of each block, [count] float32.

    Raises:
        CheckpointError: There are too few or too many, or NaN among them.
    """
    absmax = held["absmax"].flatten()
    _check_size(f"{name}.absmax", absmax, count)
    if "nested_absmax" not in held:
        if absmax.dtype not in FLOATS or state.nested_size is not None:
            raise CheckpointError(
                f"{name}.absmax is quantized itself, but the checkpoint lacks {name}.nested_absmax"
            )
        return finite(name, "absmax", [absmax])[0]
    if state.nested_size is None or absmax.dtype not in BYTES:
        raise CheckpointError(
            f"{name}.nested_absmax is there, though {name}.{STATE}... or the type of "
            f"{name}.absmax says that scales are plain; fetch the checkpoint again"
        )
    wide = held["nested_absmax"].flatten()
    _check_floats(f"{name}.nested_absmax", wide, -(-count // state.nested_size))
    [wide] = finite(name, "nested_absmax", [wide])
    numbers = _table(f"{name}.nested_quant_map", held["nested_quant_map"], 256)[absmax.int()]
    each = min(state.nested_size, count)  # whatever it says, no more than there are
    return numbers * wide.repeat_interleave(each)[:count] + state.offset


def _table(name: str, table: Tensor, count: int) -> Tensor:
    """Return the numbers that codes stand for."""
    _check_floats(name, table, count)
    layer, _, last = name.rpartition(".")
    return finite(layer, last, [table.flatten()])[0]


def _check_floats(name: str, tensor: Tensor, count: int) -> None:
    """Refuse a tensor of another size, or of integers.

    Raises:
        CheckpointError: It is one.
    """
    _check_size(name, tensor, count)
    if tensor.dtype not in FLOATS:
        raise CheckpointError(
            f"{name} is of type {tensor.dtype}, not of floats; fetch or export the checkpoint again"
        )


def _check_size(name: str, tensor: Tensor, count: int) -> None:
    """Refuse a tensor of another size.

    Raises:
        CheckpointError: It has one.
    """
    if tensor.numel() != count:
        raise CheckpointError(
            f"{name} has {tensor.numel()} elements, but {count} belong to its matrix; fetch or "
            "export the checkpoint again"
        )


def read(config: Mapping[str, Any]) -> StoredFormat:
    """Read a `quantization_config` of bitsandbytes.

    Raises:
        CheckpointError: It is malformed, or means both or neither form.
    """
    values = Values(config)
    four = values.flag("load_in_4bit", "_load_in_4bit", default=False)
    eight = values.flag("load_in_8bit", "_load_in_8bit", default=False)
    if four == eight:
        values.refuse("load_in_4bit", "and load_in_8bit must be true and false, or false and true")
    kind = "int8"
    if four:
        kind = values.one_of(KINDS, "bnb_4bit_quant_type", default="fp4")
    kept = ("lm_head",)
    if values.get("llm_int8_skip_modules") is not None:
        kept = values.names("llm_int8_skip_modules")
    return BitsAndBytes(kind, kept)
