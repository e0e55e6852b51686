"""How the matrices of a GGUF model may stay packed: as integers with scales by group.

Every type of blocks is such a form, exactly. Where no kernel of the platform takes it, or matrices
that are multiplied together have different ones, layers ask for plain numbers instead. A matrix
whose rows are looked up as well, as a tied embedding is, has its blocks under a name of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers import Share, Storage, TensorSpec, WeightFormat
from hotshoe.slots import QuantSpec
from hotshoe_models.gguf.blocks import PARTS
from hotshoe_models.gguf.types import TYPES, BlockType

BYTES = frozenset({torch.uint8})
#: The last part of a tensor's name: as layers have it, and of blocks beside plain numbers.
WEIGHT, BLOCKS = "weight", "blocks"
_BY_NAME = {kind.name: kind for kind in TYPES.values()}
#: Bits of an integer, how many share a scale, whether nothing is added to them, and how many bits
#: they need where that is fewer. Q5_0 has the form of Q8_0: both may be multiplied together.
_FORMS = {
    "Q4_0": (4, 32, True, None),
    "Q4_1": (4, 32, False, None),
    "Q4_K": (4, 32, False, None),
    "Q5_0": (8, 32, True, None),
    "Q5_1": (8, 32, False, 5),
    "Q5_K": (8, 32, False, 5),
    "Q8_0": (8, 32, True, None),
    "IQ4_NL": (8, 32, True, None),
    "IQ4_XS": (8, 32, True, None),
    "Q2_K": (4, 16, False, None),
    "Q3_K": (4, 16, True, None),
    "Q6_K": (8, 16, True, 6),
}
FORMS = {
    kind: QuantSpec(f"int{held}", "group", size, symmetric=symmetric, bits=bits)
    for kind, (held, size, symmetric, bits) in _FORMS.items()
} | {"MXFP4": QuantSpec("fp4_e2m1", "group", 32)}


class Packed(WeightFormat):
    """See `hotshoe.layers.WeightFormat`.

    Args:
        kinds: Types in the file, by the checkpoint's tensor names.
        plain: Tensors that somebody wants as plain numbers in any case.

    Attributes:
        kept: Tensors that layers want as they lie in the file, found while the model is built.
    """

    online = False

    def __init__(self, kinds: Mapping[str, str], plain: frozenset[str]) -> None:
        self._kinds = {name: kind for name, kind in kinds.items() if kind in FORMS}
        self._plain = plain
        self._inputs: dict[str, int] = {}
        self.kept: set[str] = set()

    def storage(self, layer: str, shape: tuple[int, int]) -> Storage | None:
        """Return the form of the type that the file has; None for plain numbers."""
        kind = self._kinds.get(f"{layer}.weight")
        return None if kind is None else Storage(FORMS[kind])

    def tensors(self, layer: str, shape: tuple[int, int], share: Share) -> Mapping[str, TensorSpec]:
        """Return the matrix as bytes: whole blocks of each row."""
        name = f"{layer}.weight"
        kind = _BY_NAME[self._kinds[name]]
        begin, end = share.columns.start, share.columns.stop
        if begin % kind.values or end % kind.values or shape[1] % kind.values:
            raise CheckpointError(
                f"{layer}: inputs {begin} to {end} are no whole blocks of {kind.values} values"
            )
        columns = slice(*(at // kind.values * kind.nbytes for at in (begin, end)))
        self._inputs[layer] = end - begin
        part = self._part(layer)
        self.kept.add(f"{layer}.{part}")
        pieces = tuple((rows, columns) for rows in share.rows)
        whole = (shape[0], shape[1] // kind.values * kind.nbytes)
        return {part: TensorSpec(whole, pieces, BYTES, share.padding)}

    def unpack(self, layer: str) -> None:
        """Hear that a layer takes plain numbers."""
        self.kept.discard(f"{layer}.{self._part(layer)}")

    def _part(self, layer: str) -> str:
        return BLOCKS if f"{layer}.{WEIGHT}" in self._plain else WEIGHT

    def canonical(
        self, layer: str, tensors: Mapping[str, Sequence[Tensor]]
    ) -> Mapping[str, Sequence[Tensor]]:
        """Return integers, scales and zero points."""
        form = FORMS[self._kinds[f"{layer}.weight"]]
        inputs, part = self._inputs[layer], self._part(layer)
        parts = [_taken_apart(layer, rows, form, inputs) for rows in tensors[part]]
        made = {name: pieces for name, pieces in tensors.items() if name != part}
        made |= {"weight": [q for q, _, _ in parts], "weight_scale": [d for _, d, _ in parts]}
        if not form.symmetric:
            made["weight_zero_point"] = [zero for _, _, zero in parts]
        return made


def _taken_apart(
    layer: str, rows: Tensor, form: QuantSpec, inputs: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return integers [n, inputs], scales and zero points [n, groups] of rows of blocks.

    A zero point need not be an integer: it is the distance of a block's minimum in steps.

    Raises:
        CheckpointError: Scales are not finite.
    """
    kind = _kind_of(rows.shape[1], form, inputs)
    parts = PARTS[kind.name](rows.reshape(-1, kind.nbytes)).checked(layer)
    q, d = parts.q.reshape(len(rows), inputs), parts.d.reshape(len(rows), -1)
    if parts.m is None:
        return q, d, torch.empty(0)
    m = parts.m.reshape(d.shape)
    constant = d == 0  # all numbers of the group are m
    q = q.masked_fill(constant.repeat_interleave(inputs // d.shape[1], 1), 0)
    d = d.masked_fill(constant, 1.0)
    return q.to(torch.int8), d, -m / d


def _kind_of(nbytes: int, form: QuantSpec, inputs: int) -> BlockType:
    """Return the type of rows with so many bytes, among those of one form: they all differ."""
    kinds = (_BY_NAME[name] for name, known in FORMS.items() if known == form)
    return next(kind for kind in kinds if inputs // kind.values * kind.nbytes == nbytes)
