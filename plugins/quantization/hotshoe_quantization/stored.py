"""What all formats of quantized checkpoints share: cutting stored tensors among ranks, checks, and
a format that has one scheme for each layer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers import Share, Storage, TensorSpec, WeightFormat
from hotshoe.loader.sources import Described, TensorSource
from hotshoe.slots import QuantSpec
from hotshoe_quantization.values import Values

_log = logging.getLogger(__name__)
Shape: TypeAlias = tuple[int, int]
Pieces: TypeAlias = Mapping[str, Sequence[Tensor]]
#: Part of the names of layers of which each token meets few.
EXPERTS = ".experts."
#: x as int8, with a scale for each token.
INT8_ROWS = QuantSpec("int8", "token", dynamic=True)
#: What every form has beside its numbers: scales, by the names that they have.
BESIDE = re.compile("scale|SCB|absmax")
WORDS = frozenset({torch.int32})
#: Of a cache; scales of whole tensors are read.
KV_STRATEGIES = ("tensor", "channel", "token", "attn_head", "group", "tensor_group")
#: Scales of keys and values; some write those beside the projections.
KV_NAMES = ("k_scale", "v_scale")
KV_RENAMES = ((r"\.(k|v)_proj\.(k|v)_scale$", r".\2_scale"),)
#: Scales of the KV cache and of results, which are not needed where the cache does not use them.
OTHER_SCALES = (r"\.(k|v|kv|q|prob|output)_scale$", r"\.(k|v)_proj\.(k|v)_scale$")
#: Scales of x that is the same for all steps.
X_SCALES = r"\.(input|activation)_scale$"
#: Scales of x of experts, single or of all, where experts take x as it is.
OTHER_SCALES += (r"\.experts\.(\d+\.)?\w+[._](input|activation)_scale$",)


class Scheme(Protocol):
    """How one matrix is stored; see `hotshoe.layers.WeightFormat`."""

    def storage(self, layer: str, shape: Shape) -> Storage:
        """Return the form in which kernels get it."""
        ...

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Return its tensors."""
        ...

    def canonical(self, layer: str, tensors: Pieces) -> Pieces:
        """Bring them into that form."""
        ...


@runtime_checkable
class Varying(Protocol):
    """A scheme that depends on which tensors a checkpoint has."""

    def as_held(self, layer: str, names: Container[str]) -> Scheme:
        """Return the scheme of a layer, given all names from the layer's number on."""
        ...


class StoredFormat(WeightFormat):
    """A quantized checkpoint. See `hotshoe.layers.WeightFormat`.

    Args:
        scheme: Says how a layer's matrix is stored; None for plain numbers.
        unused: Names of tensors that nothing here needs, as regular expressions.
        renames: As `WeightFormat.renames`.
        kv_scales: The checkpoint has scales of keys and values, one for each attention block.
        needless: Names of tensors that must say that there is nothing more to compute.
        x_dynamic: x is quantized by scales that are computed as it comes; those that a checkpoint
            has all the same are left out, with a line in the log.
    """

    online = False

    def __init__(
        self,
        scheme: Callable[[str], Scheme | None],
        unused: Sequence[str] = (),
        renames: Sequence[tuple[str, str]] = (),
        kv_scales: bool = False,
        needless: Needless | None = None,
        x_dynamic: bool = False,
    ) -> None:
        self.scheme = scheme
        if needless is not None:
            self.decode, self.same_names = lambda source: Without(source, needless), True
        self.unused = (*OTHER_SCALES, *unused, *((X_SCALES,) if x_dynamic else ()))
        self._x_dynamic = x_dynamic
        self.renames = (*renames, *(KV_RENAMES if kv_scales else ()))
        self.kv_scales = KV_NAMES if kv_scales else None
        self.survey = self._survey
        self._names: frozenset[str] | None = None
        #: No expert of the checkpoint has scales. Writers that know matrices of single layers alone
        #: leave out those of experts, which modules hold in one tensor, and do not list them.
        self._plain_experts = False

    def storage(self, layer: str, shape: Shape) -> Storage | None:
        """Ask the layer's scheme. An embedding has none, even where logits are made by it."""
        if layer.endswith("embed_tokens") or (self._plain_experts and EXPERTS in layer):
            return None
        scheme = self._found(layer)
        return None if scheme is None else scheme.storage(layer, shape)

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Ask the layer's scheme."""
        return self._of(layer).tensors(layer, shape, share)

    def canonical(self, layer: str, tensors: Pieces) -> Pieces:
        """Ask the layer's scheme."""
        return self._of(layer).canonical(layer, tensors)

    def _survey(self, names: Iterable[str]) -> None:
        """Keep the names of scales of x, and whether experts have scales."""
        names = list(names)
        self._plain_experts = not any(
            BESIDE.search(name.rpartition(EXPERTS)[2]) for name in names if EXPERTS in name
        )
        of_x = [name for name in names if ".input" in name or ".activation_scale" in name]
        self._names = frozenset(map(_numbered, of_x))
        count = sum(re.search(X_SCALES, name) is not None for name in of_x)
        if self._x_dynamic and count:
            _log.warning(
                "%d scales of x are not used: quantization_config says that they are computed as x "
                "comes (dynamic)",
                count,
            )

    def _found(self, layer: str) -> Scheme | None:
        scheme = self.scheme(layer)
        if self._names is None or not isinstance(scheme, Varying):
            return scheme
        return scheme.as_held(_numbered(layer), self._names)

    def _of(self, layer: str) -> Scheme:
        scheme = self._found(layer)
        assert scheme is not None, "asked only where there is a storage"
        return scheme


def _numbered(name: str) -> str:
    """Return a name from the layer's number on: what is before it may be renamed."""
    return name[max(name.find("layers."), 0) :]


def _all_zero(tensor: Tensor) -> bool:
    return not bool(tensor.any())


@dataclass(frozen=True, slots=True)
class Needless:
    """Tensors that only say that nothing is to be added or reordered, and have to say so.

    Attributes:
        has: Tells by name which ones.
        why: What is wrong where one says otherwise.
        neutral: Tells whether one says so.
    """

    has: Callable[[str], bool]
    why: str
    neutral: Callable[[Tensor], bool] = _all_zero


def _nothing_added(zeros: Tensor) -> bool:
    """Tell whether zero points are 0, or in words of unsigned integers the middle of their bits."""
    middles = (0x80, 0x88) if zeros.dtype == torch.int32 else ()
    return zeros.contiguous().view(torch.uint8).unique().tolist() in (
        [],
        [0],
        *([m] for m in middles),
    )


def zero_points(scheme: Callable[[str], Scheme | None], endings: Sequence[str]) -> Needless:
    """Return the zero points of weights whose scheme has none.

    Args:
        scheme: Says how a layer is stored.
        endings: Of names, behind the layer's.
    """

    def has(name: str) -> bool:
        layer = next((name.removesuffix(end) for end in endings if name.endswith(end)), None)
        weight = None if layer is None else getattr(scheme(layer), "weight", None)
        return isinstance(weight, QuantSpec) and weight.symmetric

    why = "is not zero, though quantization_config means symmetric numbers"
    return Needless(has, why, _nothing_added)


class Without:
    """A source without needless tensors.

    Args:
        source: The files'.
        needless: Those that are left out.

    Raises:
        CheckpointError: One is needed.
    """

    def __init__(self, source: TensorSource, needless: Needless) -> None:
        self._names = []
        for name in source.names():
            if not needless.has(name):
                self._names.append(name)
            elif not needless.neutral(source.tensor(name)):
                raise CheckpointError(f"{name} {needless.why}; export the checkpoint again")
        self.tensor, self.taken = source.tensor, source.taken
        if isinstance(source, Described):
            self.stored = source.stored

    def names(self) -> Iterable[str]:
        """Return the names of the others."""
        return self._names


@dataclass(frozen=True, slots=True)
class Axis:
    """What one element of a stored tensor covers.

    Attributes:
        outputs: Outputs of the matrix, such as 8 of a word that packs 8, or 128 of a block's scale;
            None for all. Three words of 32 numbers of three bits have 32 / 3 each.
        inputs: The same of its inputs.
        transposed: Inputs come before outputs.
    """

    outputs: int | Fraction | None = 1
    inputs: int | Fraction | None = 1
    transposed: bool = False

    def spec(
        self, layer: str, shape: Shape, share: Share, dtypes: frozenset[torch.dtype]
    ) -> TensorSpec:
        """Return the tensor's shape and this rank's pieces.

        Raises:
            CheckpointError: An element belongs to two ranks.
        """
        columns = _range(layer, share.columns, self.inputs, shape[1])
        cuts = [_range(layer, rows, self.outputs, shape[0]) for rows in share.rows]
        if share.padding and self.outputs is None:
            cuts.append(slice(0, 1))
        elif share.padding and (self.transposed or self.outputs != 1):
            raise _undivided(layer)
        pieces = [(columns, cut) if self.transposed else (cut, columns) for cut in cuts]
        whole = _count(self.outputs, shape[0]), _count(self.inputs, shape[1])
        padding = share.padding if self.outputs == 1 else 0
        return TensorSpec(whole[::-1] if self.transposed else whole, tuple(pieces), dtypes, padding)


def _range(layer: str, part: slice, unit: int | Fraction | None, size: int) -> slice:
    """Return which elements cover a part of an axis."""
    if unit is None:
        return slice(0, 1)
    if part.start % unit or (part.stop % unit and part.stop != size):
        raise _undivided(layer)
    return slice(part.start // unit, _count(unit, part.stop))


def _count(unit: int | Fraction | None, size: int) -> int:
    """Return how many elements cover a whole axis."""
    return 1 if unit is None else -(-size // unit)


def _undivided(layer: str) -> CheckpointError:
    whole = ", or enable_expert_parallel, which keeps experts whole" if EXPERTS in layer else ""
    return CheckpointError(
        f"{layer}: its scales or packed numbers cannot be divided among the ranks, or be put into "
        f"another order, without cutting one; use a smaller tensor_parallel_size{whole}, or a "
        "checkpoint with smaller groups"
    )


def check_words(layer: str, size: int, per_word: int | Fraction) -> None:
    """Refuse a size that does not fill 32-bit words.

    Raises:
        CheckpointError: It does not.
    """
    if size % per_word:
        raise CheckpointError(
            f"{layer} has a side of {size}, which words of {per_word} numbers do not fill; "
            "such a matrix is not read"
        )


def check_group(layer: str, inputs: int, size: int | None) -> None:
    """Refuse a group size that does not divide the inputs.

    Raises:
        CheckpointError: It does not.
    """
    if size is not None and inputs % size:
        raise CheckpointError(
            f"{layer} has {inputs} inputs, which the group_size {size} of quantization_config does "
            "not divide; checkpoint and configuration do not belong together"
        )


def finite(layer: str, name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return scales in float32.

    Raises:
        CheckpointError: They hold NaN or infinity.
    """
    wide = [tensor.float() for tensor in tensors]
    if not all(bool(tensor.isfinite().all()) for tensor in wide):
        raise CheckpointError(
            f"{layer}.{name}, or that of a matrix stacked with it, holds NaN or infinity; fetch or "
            "export the checkpoint again"
        )
    return wide


def positive(layer: str, name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return scales by which x is divided, in float32.

    Raises:
        CheckpointError: One is not positive, or not finite.
    """
    wide = finite(layer, name, tensors)
    if not all(bool((tensor > 0).all()) for tensor in wide):
        raise CheckpointError(
            f"{layer}.{name}, or that of a matrix stacked with it, is not positive, so x "
            "cannot be quantized by it; fetch or export the checkpoint again"
        )
    return wide


def by_rows(scales: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
    """Give each row of a matrix the scale [1, 1] of the whole."""
    pairs = zip(scales, weights, strict=True)
    return [scale.reshape(1, -1).expand(len(weight), -1) for scale, weight in pairs]


def ordered(layer: str, weights: Sequence[Tensor], groups: Sequence[Tensor], size: int) -> Pieces:
    """Bring the columns of matrices into the order of their groups.

    Args:
        layer: For messages.
        weights: Each [rows, inputs].
        groups: Each [inputs] integers, the group of every column; the same in all matrices.
        size: Columns of a group.

    Returns:
        "weight", and "weight_order": where each column lies in x.

    Raises:
        CheckpointError: The groups are not what groups of that size can be, or differ.
    """
    first = groups[0].long()
    order = first.argsort(stable=True)
    whole = torch.arange(len(first), device=first.device) // size
    if not torch.equal(first[order], whole):
        raise CheckpointError(
            f"{layer}: g_idx does not put {size} columns, the group_size of quantization_config, "
            "into every group; fetch or export the checkpoint again"
        )
    if not all(torch.equal(first, other.long()) for other in groups[1:]):
        raise CheckpointError(
            f"{layer} and the matrices that are multiplied together with it order their columns "
            "differently (g_idx), which is not computed; use a checkpoint without act-order"
        )
    return {
        "weight": [weight[:, order] for weight in weights],
        "weight_order": [order.to(torch.int32)] * len(weights),
    }


def order_spec(layer: str, shape: Shape, share: Share, size: int | None) -> TensorSpec:
    """Describe the groups of columns that have an order of their own; see `ordered`.

    Raises:
        CheckpointError: The columns are divided.
    """
    whole_inputs(layer, shape, share)

    def drawn(groups: Tensor) -> Tensor:
        """Return columns in order, which any order may be."""
        return torch.arange(len(groups), dtype=groups.dtype) // (size or 1)

    return TensorSpec((shape[1],), ((slice(None),),), WORDS, drawn=drawn)


def whole_inputs(layer: str, shape: Shape, share: Share) -> None:
    """Refuse to divide the inputs of a matrix whose columns have an order of their own.

    Raises:
        CheckpointError: They are divided.
    """
    if share.columns != slice(0, shape[1]):
        raise CheckpointError(
            f"{layer} is stored with act-order (g_idx), which cannot be divided among ranks; use "
            "tensor_parallel_size 1, or a checkpoint without act-order"
        )


@dataclass(frozen=True, slots=True)
class PackedInputs:
    """Integers that 32-bit words hold, packed along the inputs.

    Attributes:
        weight: Integers of four or eight bits, by "channel" or "group".
        bits: That a number takes in a word.
    """

    weight: QuantSpec
    bits: int

    @property
    def per_word(self) -> int | Fraction:
        """Numbers of a word; of three bits 32 fill three words."""
        share = Fraction(32, self.bits)
        return share.numerator if share.denominator == 1 else share

    def storage(self, layer: str, shape: Shape) -> Storage:
        """Return the integers' form."""
        check_group(layer, shape[1], self.weight.group_size)
        check_words(layer, shape[1], self.per_word)
        return Storage(self.weight)


def with_x_left(layer: str, weight: QuantSpec, left: QuantSpec | None) -> Storage:
    """Return the form of weights whose x stays as it is, though the checkpoint names its form.

    Beside integers of four bits x is rounded to eight where a kernel does that; not for experts.
    """
    rounds = weight.format == "int4" and left == INT8_ROWS and not weight.permuted
    native = Storage(weight, left) if rounds and EXPERTS not in layer else None
    return Storage(weight, native=native, left=left)


def has_kv_scales(values: Values) -> bool:
    """Tell whether `kv_cache_scheme` means a scale for all keys of a layer, and one for all values.

    Scales of the other kinds are not needed: a cache of 8-bit types then computes its own by token.

    Raises:
        CheckpointError: The scheme is malformed, or of an unknown kind.
    """
    if values.get("kv_cache_scheme") is None:
        return False
    kv = Values(values.get("kv_cache_scheme"), "quantization_config.kv_cache_scheme")
    kind = kv.one_of(("int", "float"), "type", default="int")
    bits = kv.one_of((4, 8), "num_bits")
    strategy = kv.one_of(KV_STRATEGIES, "strategy", default="tensor")
    dynamic, symmetric = kv.flag("dynamic", default=False), kv.flag("symmetric", default=True)
    if (kind, bits, strategy, dynamic) != ("float", 8, "tensor", False):
        return False
    if not symmetric:
        kv.refuse("symmetric", "must be true of floats")
    return True
