"""The specification of how numbers are quantized, and its form in words. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.slots.versions import since


@dataclass(frozen=True, slots=True)
class QuantSpec:
    """How one operand of a matrix product is stored.

    Attributes:
        format: "int8", "int4", "fp8_e4m3", "fp4_e2m1" (given as twice the number, int8; scales
            are powers of two, or, in groups of 16, multiples of `weight_global_scale`), ...
        granularity: What shares a scale: "tensor", "channel" (an output row), "token" (an
            activation row), "group" (group_size along the input), "block" (block_shape).
        symmetric: False when zero points are stored.
        dynamic: Scales are computed from each activation.
        online: The checkpoint is not quantized; the weight is quantized while loading.
        packing: Name of the checkpoint's bit packing; "" for one element per storage element.
        permuted: The columns of a weight come in another order than x's, which is stored with it.
        bits: How many bits integers need, where they are fewer than the format's; whoever holds
            them may take no notice.
        values: The few values that integers have, rising, at most 16; who knows them may hold where
            they are in this list. Whoever holds integers may take no notice.
    """

    format: str
    granularity: str
    group_size: int | None = None
    block_shape: tuple[int, int] | None = None
    symmetric: bool = True
    dynamic: bool = False
    online: bool = False
    packing: str = ""
    permuted: bool = since(2, False)
    bits: int | None = since(2, None)
    values: tuple[int, ...] | None = since(2, None)

    def __str__(self) -> str:
        """Return the form in words: "int8 by channel", "int4 by group of 32 with zero points",
        "int8 of 6 values by group of 16"."""
        size = {
            "group": f" of {self.group_size}",
            "block": " of {}x{}".format(*(self.block_shape or (0, 0))),
        }.get(self.granularity, "")
        zeros = "" if self.symmetric else " with zero points"
        few = f" of {self.bits} bits" if self.bits else ""
        few = f" of {len(self.values)} values" if self.values else few
        return f"{self.format}{few} by {self.granularity}{size}{zeros}"
