"""How a checkpoint stores the matrix of a linear layer, and which part of it a rank keeps.

A `WeightFormat` knows the files' side: tensors by name, shape and type. Kernels know none of it:
they get what the format's `canonical` makes of the tensors, in the form that `storage` has named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError, PluginError
from hotshoe.slots import QuantSpec

if TYPE_CHECKING:
    from hotshoe.loader.sources import TensorSource

#: Types that a tensor may have which is wanted as plain numbers; it is converted to the model's.
FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
#: Output and input size of a checkpoint matrix, whole.
Shape: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Storage:
    """The form in which kernels get a matrix, and the form of the activations it multiplies.

    Attributes:
        native: Another form of the same numbers, which a layer takes where a kernel other than
            the reference multiplies it. `canonical` makes tensors that serve both.
        left: The form of activations that the checkpoint names, where they stay as they are but in
            a native form.
    """

    weight: QuantSpec
    activation: QuantSpec | None = None
    native: Storage | None = None
    left: QuantSpec | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of a matrix [rows, columns].

    Attributes:
        rows: Ranges of outputs, in the order in which the rank computes them.
        columns: The range of inputs.
        padding: Rows of zeros after them.
    """

    rows: tuple[slice, ...]
    columns: slice
    padding: int = 0

    @property
    def num_rows(self) -> int:
        """Outputs that the rank computes with this part, padding included."""
        return int(sum(part.stop - part.start for part in self.rows)) + self.padding


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of the checkpoint.

    Attributes:
        shape: The whole tensor's.
        pieces: Indices of what this rank keeps of it, in order.
        dtypes: The types that it may have.
        padding: Rows of zeros after the pieces.
        drawn: Makes of random numbers what such a tensor may hold, for weights that are random;
            None where any numbers do.
    """

    shape: tuple[int, ...]
    pieces: tuple[tuple[slice, ...], ...]
    dtypes: frozenset[torch.dtype] = FLOATS
    padding: int = 0
    drawn: Callable[[Tensor], Tensor] | None = None

    def keep(self, tensor: Tensor) -> list[Tensor]:
        """Return this rank's pieces of the whole tensor: views, and zeros for padding."""
        kept = [tensor[piece] for piece in self.pieces]
        if self.padding:
            kept.append(tensor.new_zeros((self.padding, *tensor.shape[1:])))
        return kept


@runtime_checkable
class WeightFormat(Protocol):
    """What hook `hotshoe_quantizations` names: how the matrices of a checkpoint are stored.

    One object serves a whole model. A layer is called as the checkpoint calls it, such as
    `model.layers.3.mlp.down_proj`. One that reads quantized checkpoints is named by hook
    `hotshoe_weight_formats`.

    A format derives from this class, which has what few formats need. One that computes for long
    is a `CostlyFormat`.

    Attributes:
        online: The checkpoint has plain numbers. Then models keep their own exceptions, such as
            the output matrix; otherwise the checkpoint says what is not quantized.
        unused: Names of tensors, as regular expressions, that quantized checkpoints may have and
            that nothing here needs.
        renames: Regular expressions and what they stand for, as `WeightTable.rename` takes them.
        kv_scales: Names of the scales of keys and values in the checkpoint, behind the name of an
            attention block; None where there are none.
        unpack: Of a format whose tensors can be had as plain numbers as well. It is called with a
            layer where none but the reference takes the form, or matrices that are multiplied
            together have different ones, or ranks cannot cut them. The layer then asks for plain
            numbers.
        join: Of a format that has one form for numbers of several. It is called with layers whose
            matrices are multiplied together and have different forms. Where there is such a form,
            `storage` gives them all that one from then on.
        survey: Of a format whose forms depend on which tensors a checkpoint has. It is called with
            their names, before a layer asks; not if there are none, as with random weights.
        decode: Of a format whose tensors have no shape that a layer could ask for. It maps a
            checkpoint's `hotshoe.loader.TensorSource` to one whose tensors layers know.
        by_expert: What `decode` returns names each expert's matrices, also of architectures whose
            published checkpoints have a tensor of all.
        same_names: What `decode` returns has tensors of the checkpoint alone, by their names. Then
            an engine that brings tensors by name can do without it.
    """

    online: bool
    unused: Sequence[str] = ()
    renames: Sequence[tuple[str, str]] = ()
    kv_scales: tuple[str, str] | None = None
    unpack: Callable[[str], None] | None = None
    join: Callable[[Sequence[str]], None] | None = None
    survey: Callable[[Iterable[str]], None] | None = None
    decode: Callable[[TensorSource], TensorSource] | None = None
    by_expert: bool = False
    same_names: bool = False

    def storage(self, layer: str, shape: Shape) -> Storage | None:
        """Return the form in which kernels get a layer's matrix; None for plain numbers."""
        ...

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Return the tensors that make up a matrix, by the last part of their names; first the one
        with its numbers.

        The bias is not among them. Asked only where there is a `storage`.

        Raises:
            CheckpointError: The matrix cannot be stored so, or be divided among ranks so.
        """
        ...

    def canonical(
        self, layer: str, tensors: Mapping[str, Sequence[Tensor]]
    ) -> Mapping[str, Sequence[Tensor]]:
        """Turn what ranks have kept into what `LinearOp.load` takes.

        Args:
            layer: The first of the layers whose matrices are stacked.
            tensors: The pieces of all stacked matrices, by the names of `tensors`; and "bias".
        """
        ...


@runtime_checkable
class CostlyFormat(WeightFormat, Protocol):
    """A format whose results are worth keeping for the next start.

    Its `canonical` gets tensors on the device where its results go, and may compute there.
    """

    def recipe(self, layer: str) -> str | None:
        """Say what `canonical` makes of a layer's tensors, so that another text means other
        numbers: method, its sizes, its version. None where that is quick. What it leaves as it is,
        it returns as it got it; all else follows from the tensors and this text alone."""
        ...


class OnlineFormat(WeightFormat):
    """A checkpoint of plain numbers, which kernels quantize while they load.

    Args:
        chosen: The form of every matrix; None for plain numbers.
    """

    online = True

    def __init__(self, chosen: Storage | None = None) -> None:
        self._storage = chosen

    def storage(self, layer: str, shape: Shape) -> Storage | None:
        """Return the one form; models keep their own exceptions, such as the output matrix."""
        return self._storage

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Return the weight alone."""
        pieces = tuple((rows, share.columns) for rows in share.rows)
        return {"weight": TensorSpec(shape, pieces, padding=share.padding)}

    def canonical(
        self, layer: str, tensors: Mapping[str, Sequence[Tensor]]
    ) -> Mapping[str, Sequence[Tensor]]:
        """Return the tensors as they are."""
        return tensors


#: What modules of transformers, and so descriptions of quantization, call the output matrix.
OUTPUT = "lm_head"
#: Of layers that nobody quantizes.
PLAIN: WeightFormat = OnlineFormat()


def stored_kv_scales(format: WeightFormat, block: str) -> tuple[str, str] | None:
    """Return the checkpoint names of an attention block's scales of keys and values, if it has any.

    Args:
        block: As the checkpoint calls it, such as `model.layers.3.self_attn`.
    """
    names = format.kv_scales
    return None if names is None else (f"{block}.{names[0]}", f"{block}.{names[1]}")


def stored_alike(
    format: WeightFormat, parts: Sequence[tuple[str, int]], in_features: int
) -> tuple[WeightFormat, Storage | None]:
    """Return how matrices are stored that one product multiplies.

    Args:
        format: The checkpoint's.
        parts: Their names and output sizes.
        in_features: Input size.

    Returns:
        The format that reads them, and their form; None for plain numbers, which they become one by
        one if the format is still the checkpoint's: then they are stored in different forms.
    """
    found = [format.storage(name, (size, in_features)) for name, size in parts]
    if format.join is not None and any(stored != found[0] for stored in found):
        format.join([name for name, _ in parts])
        found = [format.storage(name, (size, in_features)) for name, size in parts]
    if any(stored != found[0] for stored in found):  # maybe in what nobody has to know
        found = [stored and _without_hints(stored) for stored in found]
    if any(stored != found[0] for stored in found):
        if format.unpack is not None:
            return PLAIN, None
        return format, None
    return (PLAIN, None) if found[0] is None else (format, found[0])


def _without_hints(stored: Storage) -> Storage:
    """Return a form without a native one, and without the values that its integers have."""
    return replace(stored, native=None, weight=replace(stored.weight, values=None))


def stored_otherwise(parts: Sequence[tuple[str, int]]) -> CheckpointError:
    """Return the error about matrices in several forms that one product multiplies."""
    names = " and ".join(name for name, _ in parts)
    return CheckpointError(f"{names} are multiplied together, but stored in different forms")


def bias_spec(size: int, share: Share) -> TensorSpec:
    """Return a bias's specification; formats do not differ in it."""
    return TensorSpec((size,), tuple((rows,) for rows in share.rows), padding=share.padding)


def checked_format(found: object, name: str) -> WeightFormat:
    """Return what a plugin has made, if it is a format.

    Raises:
        PluginError: It is none; one that was written for hook API 1 is told what has changed.
    """
    if isinstance(found, WeightFormat):
        return found
    why = f"it made {type(found).__name__}, which does not derive from hotshoe.layers.WeightFormat"
    if hasattr(found, "operands"):
        why = (
            "it was written for hook API 1: its operands() became storage(), tensors() and "
            "canonical() of hotshoe.layers.WeightFormat; install a newer version"
        )
    raise PluginError(f"quantization method {name} cannot be used: {why}")


def output_is_plain(format: WeightFormat, name: str, shape: Shape, own: str) -> bool:
    """Tell whether a quantized checkpoint has plain numbers for an output matrix.

    It has if rows of the matrix are looked up as well, unless the format can give them as plain
    numbers. Others may have a name of their own in the checkpoint. Its description of quantization
    calls them as transformers' modules are called, and methods leave them out by that name.

    Args:
        format: The checkpoint's.
        name: Of the matrix in the checkpoint.
        shape: Of the matrix.
        own: What it is called where it is no embedding, too; "" for the same.
    """
    if format.online or format.unpack is not None:
        return False
    return name != (own or name) or (name != OUTPUT and format.storage(OUTPUT, shape) is None)
