"""What a cache of one row for each token keeps of it: latents and a rotated key, or an index's key.

Free of torch. How rows are made of numbers, and numbers of rows, is `slots.reference.rows`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.types.cache import ITEM_BYTES, QUANTIZED, CacheKind, CachePart, CacheSpec

#: Room for the scale of a row, and what its other parts are multiples of: copy engines move 16
#: bytes. The scale, a float32, fills it four times.
ALIGNED = 16
#: Kinds of caches that are one tensor of such rows.
ROW_KINDS: tuple[CacheKind, ...] = ("latent", "index")


@dataclass(frozen=True, slots=True)
class RowForm:
    """One row: numbers of the cache's type, then further ones that are never of 8 bits.

    With an 8-bit type a row is bytes: numbers, their scale, further numbers in `dtype`. What was
    stored is a number times the scale.

    Attributes:
        numbers: Channels that the cache's type holds.
        exact: Further ones.
        dtype: Of these where `kv_dtype` has 8 bits.
        kv_dtype: The cache's type.
    """

    numbers: int
    exact: int
    dtype: str
    kv_dtype: str

    @property
    def channels(self) -> int:
        """Numbers of a row, of either type."""
        return self.numbers + self.exact

    @property
    def quantized(self) -> bool:
        """Whether the cache's type has 8 bits."""
        return self.kv_dtype in QUANTIZED.values()

    @property
    def exact_size(self) -> int:
        """Bytes of one of the further numbers of a quantized row."""
        return ITEM_BYTES.get(self.dtype, 1)

    @property
    def exact_at(self) -> int:
        """Bytes of a quantized row before its further numbers."""
        return self.numbers + ALIGNED

    @property
    def width(self) -> int:
        """Elements of a row in the cache's tensor; bytes if it is quantized."""
        if not self.quantized:
            return self.channels
        return self.exact_at + self.exact * self.exact_size

    @property
    def nbytes(self) -> int:
        """Bytes of a row."""
        return self.width * ITEM_BYTES.get(self.kv_dtype, 1)

    @property
    def refusal(self) -> str:
        """Why rows cannot be so; empty if they can."""
        parts = (self.numbers, self.exact * self.exact_size)
        if not self.quantized or not any(part % ALIGNED for part in parts):
            return ""
        return (
            f"has rows of {self.kv_dtype} whose parts are multiples of {ALIGNED} bytes, not "
            f"{parts[0]} and {parts[1]}; use --kv-cache-dtype auto"
        )

    def parts(self, kind: CacheKind, block_size: int) -> tuple[CachePart, ...]:
        """Return what a block holds. The parts of a quantized row follow each other in it."""
        if not self.quantized:
            return (CachePart(kind, "td", (block_size, self.width), self.kv_dtype),)
        found = (
            CachePart(kind, "td", (block_size, self.numbers), self.kv_dtype),
            CachePart("scale", "td", (block_size, ALIGNED // 4), "float32"),
            CachePart("exact", "td", (block_size, self.exact), self.dtype),
        )
        return found if self.exact else found[:2]


def row_form(spec: CacheSpec) -> RowForm:
    """Read the form of rows off a cache's parts; plain rows have no further numbers then."""
    first, last = spec.parts[0], spec.parts[-1]
    exact = last.shape[1] if last.name == "exact" else 0
    return RowForm(first.shape[1], exact, last.dtype, first.dtype)
