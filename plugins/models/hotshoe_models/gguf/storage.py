"""How the matrices of a GGUF model may stay packed: as integers with scales by group.

Every type of blocks is such a form, exactly. Matrices that are multiplied together and have
different ones get a form that holds the numbers of all. Where no kernel of the platform takes the
form, layers ask for plain numbers instead. A matrix whose rows are looked up as well, as a tied
embedding is, has its blocks under a name of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers import Share, Storage, TensorSpec, WeightFormat
from hotshoe.slots import QuantSpec
from hotshoe_models.gguf.blocks import CODEBOOK, FP4_DOUBLED, PARTS
from hotshoe_models.gguf.codebooks import CODEBOOKS
from hotshoe_models.gguf.types import TYPES, BlockType

BYTES = frozenset({torch.uint8})
#: The last part of a tensor's name: as layers have it, of blocks beside plain numbers, and of what
#: a matrix is to be multiplied by.
WEIGHT, BLOCKS, SCALE = "weight", "blocks", "scale"
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
    "IQ1_S": (4, 32, False, None),
    "IQ1_M": (8, 16, True, 5),
    "IQ2_XXS": (8, 32, True, None),
    "IQ2_XS": (8, 16, True, None),
    "IQ2_S": (8, 16, True, None),
    "IQ3_XXS": (8, 32, True, 6),
    "IQ3_S": (4, 32, False, None),
    "TQ1_0": (4, 256, True, None),
    "TQ2_0": (4, 256, True, None),
    "Q1_0": (4, 128, True, None),
    "Q2_0": (4, 64, True, None),
    "NVFP4": (8, 16, True, 5),
}
#: Integers of types that have few: of two bits, as they are or less 1; of codebooks, with signs.
_STEPS, _LESS_1 = (0, 1, 2, 3), (-1, 0, 1, 2)
_SIGNED = {
    book: tuple(sorted({sign * value for value in CODEBOOKS[book].values for sign in (-1, 1)}))
    for book in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS")
}
_VALUES = {
    **dict.fromkeys(("Q2_K", "IQ1_S"), _STEPS),
    **dict.fromkeys(("TQ1_0", "TQ2_0", "Q1_0", "Q2_0"), _LESS_1),
    "IQ1_M": (-9, -7, -1, 1, 7, 9),
    **_SIGNED,
    **dict.fromkeys(("IQ4_NL", "IQ4_XS"), CODEBOOK),
    "NVFP4": tuple(sorted({*FP4_DOUBLED})),
}
FORMS = {
    kind: QuantSpec(
        f"int{held}", "group", size, symmetric=symmetric, bits=bits, values=_VALUES.get(kind)
    )
    for kind, (held, size, symmetric, bits) in _FORMS.items()
} | {"MXFP4": QuantSpec("fp4_e2m1", "group", 32)}


class Packed(WeightFormat):
    """See `hotshoe.layers.WeightFormat`.

    Args:
        kinds: Types in the file, by the checkpoint's tensor names.
        plain: Tensors that somebody wants as plain numbers in any case.
        factors: Some matrix is to be multiplied by a number.

    Attributes:
        kept: Tensors that layers want as they lie in the file, found while the model is built.
    """

    online = False

    def __init__(
        self, kinds: Mapping[str, str], plain: frozenset[str], factors: bool = False
    ) -> None:
        self._factors = factors
        self._kinds = {name: kind for name, kind in kinds.items() if kind in FORMS}
        self._plain = plain
        self._inputs: dict[str, int] = {}
        self._joined: dict[str, tuple[QuantSpec, frozenset[str]]] = {}
        self.kept: set[str] = set()

    def storage(self, layer: str, shape: tuple[int, int]) -> Storage | None:
        """Return the form of the type that the file has; None for plain numbers."""
        if f"{layer}.weight" not in self._kinds:
            return None
        return Storage(self._form_of(layer)[0])

    def _form_of(self, layer: str) -> tuple[QuantSpec, frozenset[str]]:
        """Return the form of a packed matrix, and the types that may have it."""
        if layer in self._joined:
            return self._joined[layer]
        form = FORMS[self._kinds[f"{layer}.weight"]]
        return form, frozenset(name for name, known in FORMS.items() if known == form)

    def join(self, layers: Sequence[str]) -> None:
        """Give layers one form that holds the numbers of all; none where types look alike."""
        names = [f"{layer}.weight" for layer in layers]
        kinds = frozenset(self._kinds[name] for name in names if name in self._kinds)
        sizes = {_BY_NAME[kind].nbytes / _BY_NAME[kind].values for kind in kinds}
        if all(name in self._kinds for name in names) and len(sizes) == len(kinds):
            form = _widest([FORMS[kind] for kind in kinds])
            if form is not None:
                self._joined |= dict.fromkeys(layers, (form, kinds))

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
        found = {part: TensorSpec(whole, pieces, BYTES, share.padding)}
        if self._factors:
            self.kept.add(f"{layer}.{SCALE}")
            rows = tuple((rows, slice(0, 1)) for rows in share.rows)
            found[SCALE] = TensorSpec((shape[0], 1), rows, padding=share.padding)
        return found

    def unpack(self, layer: str) -> None:
        """Hear that a layer takes plain numbers."""
        self.kept -= {f"{layer}.{self._part(layer)}", f"{layer}.{SCALE}"}

    def _part(self, layer: str) -> str:
        return BLOCKS if f"{layer}.{WEIGHT}" in self._plain else WEIGHT

    def canonical(
        self, layer: str, tensors: Mapping[str, Sequence[Tensor]]
    ) -> Mapping[str, Sequence[Tensor]]:
        """Return integers, scales and zero points."""
        form, kinds = self._form_of(layer)
        inputs, part = self._inputs[layer], self._part(layer)
        found = [(_kind_of(rows.shape[1], kinds, inputs), rows) for rows in tensors[part]]
        parts = [_taken_apart(layer, rows, kind, form) for kind, rows in found]
        made = {name: pieces for name, pieces in tensors.items() if name not in (part, SCALE)}
        scales = [d for _, d, _ in parts]
        if SCALE in tensors:
            scales = [d * factor for d, factor in zip(scales, tensors[SCALE], strict=True)]
        made |= {"weight": [q for q, _, _ in parts], "weight_scale": scales}
        if not form.symmetric:
            made["weight_zero_point"] = [zero for _, _, zero in parts]
        return made


def _taken_apart(
    layer: str, rows: Tensor, kind: BlockType, form: QuantSpec
) -> tuple[Tensor, Tensor, Tensor]:
    """Return integers [n, inputs], scales and zero points [n, groups] of rows of blocks.

    A zero point need not be an integer: it is the distance of a block's minimum in steps.

    Raises:
        CheckpointError: Scales are not finite.
    """
    parts = PARTS[kind.name](rows.reshape(-1, kind.nbytes)).checked(layer)
    q, d = parts.q.reshape(len(rows), -1), parts.d.reshape(len(rows), -1)
    zero = torch.empty(0)
    if parts.m is not None:
        m = parts.m.reshape(d.shape)
        constant = d == 0  # all numbers of the group are m
        q = q.masked_fill(constant.repeat_interleave(q.shape[1] // d.shape[1], 1), 0)
        d = d.masked_fill(constant, 1.0)
        zero = -m / d
    elif not form.symmetric:
        middle = 2 ** (_bits(form) - 1) if _bits(form) < 8 else 0
        q, zero = q + middle, torch.full_like(d, middle)
    finer = 1 if form.group_size is None else q.shape[1] // form.group_size // d.shape[1]
    d, zero = (t.repeat_interleave(finer, 1) if t.numel() else t for t in (d, zero))
    return q.to(torch.int8), d, zero


def _kind_of(nbytes: int, kinds: Iterable[str], inputs: int) -> BlockType:
    """Return the type of rows with so many bytes, among those of one form: they all differ."""
    known = (_BY_NAME[name] for name in kinds)
    return next(kind for kind in known if inputs // kind.values * kind.nbytes == nbytes)


def _bits(form: QuantSpec) -> int:
    """Return how many bits the integers of a form need."""
    return form.bits or int(form.format.removeprefix("int"))


def _widest(forms: Sequence[QuantSpec]) -> QuantSpec | None:
    """Return the form of fewest bits that holds the numbers of all; None if some are no integers.

    Groups of 16 are halves of groups of 32, with the same scale. Integers are few where all forms
    have the same.
    """
    if not all(form.format.startswith("int") for form in forms):
        return None
    widest = max(forms, key=_bits)
    sizes = [form.group_size for form in forms if form.group_size is not None]
    values = widest.values if len({form.values for form in forms}) == 1 else None
    symmetric = all(form.symmetric for form in forms)
    return replace(widest, group_size=min(sizes), symmetric=symmetric, values=values)
