"""Online quantization of any unquantized checkpoint.

Weights are quantized while they load, to the nearest value. With eight bits for both operands
(W8A8) they have a scale per output channel, and activations, in every step, one per token.
Otherwise weights alone are quantized, of all matrices or of those whose x would lose much. Says so
as data; the kernels behind slot `linear` do it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from hotshoe.errors import ConfigError
from hotshoe.layers import HOST, OnlineFormat, Storage
from hotshoe.slots import QuantSpec
from hotshoe_quantization.stored import EXPERTS

#: Matrices whose inputs have no columns much larger than others, by the last part of their names.
EVEN = re.compile(r"\.(gate_proj|up_proj|gate_up_proj|o_proj|out_proj)$")
#: Those of them that lose least by 8-bit floats, which are wrong by more.
INNER = re.compile(r"\.(gate_proj|up_proj|gate_up_proj)$")
#: The largest value of four bits; shares of a group's range that its steps begin with; lines that
#: are drawn from each of them, and again from the best of all.
MOST = 15
RANGES = (1.0, 0.93, 0.86, 0.79)
LINES = 2
#: What `quantized_groups` makes. Another number for whatever changes what comes out.
RECIPE = "four bits by lines, 2"
#: Numbers that a thread works on at once: few enough for a core's cache; and another device, which
#: has much memory left while a model loads, but not several times a large matrix.
STRIP = 1 << 18
STRIP_THERE = 1 << 24

FLOAT, E4M3, LARGEST = "fp8_e4m3", torch.float8_e4m3fn, 448.0
#: Of E4M3, its least number with all digits; of float32, the digits that it has more, and its bits
#: of the exponent.
LEAST_NORMAL, DIGITS, EXPONENT = 2.0**-6, 2.0**20, 0x7F800000
#: How many scales are tried for a row of floats, up to twice as large as the least.
SCALES = 8
#: What `quantized_floats` makes, as `RECIPE`.
FLOAT_RECIPE = "8-bit floats by the best of 8 scales, 1"
#: 8-bit floats with a scale for each row, or for each block as DeepSeek publishes them.
ROWS_OF_FLOATS = QuantSpec(FLOAT, "channel", online=True)
TOKENS_OF_FLOATS = QuantSpec(FLOAT, "token", dynamic=True)
BLOCKS_OF_FLOATS = QuantSpec(FLOAT, "block", block_shape=(128, 128), online=True)
GROUPS_OF_FLOATS = QuantSpec(FLOAT, "group", 128, dynamic=True)


class Grouped(OnlineFormat):
    """Integers of four bits with a scale and a zero point for each group of inputs.

    They are made here, so that kernels get what they get of stored ones. Zero points are no
    integers: the least of a group is exact. See `hotshoe.layers.WeightFormat`.

    Args:
        size: Inputs of a group.
    """

    def __init__(self, size: int) -> None:
        super().__init__(Storage(QuantSpec("int4", "group", size, symmetric=False)))
        self._size = size

    def storage(self, layer: str, shape: tuple[int, int]) -> Storage | None:
        """Return the one form.

        Raises:
            ConfigError: Groups do not divide the inputs.
        """
        self._check(layer, shape[1])
        return super().storage(layer, shape)

    def canonical(
        self, layer: str, tensors: Mapping[str, Sequence[Tensor]]
    ) -> Mapping[str, Sequence[Tensor]]:
        """Quantize the pieces."""
        self._check(layer, tensors["weight"][0].shape[1])
        made = [quantized_groups(part, self._size) for part in tensors["weight"]]
        names = ("weight", "weight_scale", "weight_zero_point")
        return dict(tensors) | dict(zip(names, map(list, zip(*made, strict=True)), strict=True))

    def recipe(self, layer: str) -> str | None:
        """See `hotshoe.layers.formats.CostlyFormat`."""
        return f"{RECIPE}, groups of {self._size}"

    def _check(self, layer: str, inputs: int) -> None:
        if inputs % self._size:
            raise ConfigError(
                f"quantization: groups of {self._size} do not divide the {inputs} inputs of "
                f"{layer}; use a smaller one, such as int4, or int8"
            )


def quantized_groups(weight: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize a matrix to four bits, by the scale and zero point of each group that err least.

    Args:
        weight: [rows, columns].
        size: Columns of a group.

    Returns:
        Values int8 [rows, columns] from 0 to 15, and scales and zero points, float32
        [rows, groups].
    """
    fit = partial(_fitted, size=size)
    if weight.device == HOST:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        strips = weight.split(max(1, STRIP // weight.shape[1]))
        with ThreadPoolExecutor(max(1, (cores or 1) // torch.get_num_threads())) as pool:
            values, scales, zeros = zip(*pool.map(fit, strips), strict=True)
    else:
        strips = weight.split(max(1, STRIP_THERE // weight.shape[1]))
        values, scales, zeros = zip(*map(fit, strips), strict=True)
    return torch.cat(values), torch.cat(scales), torch.cat(zeros)


def _fitted(rows: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize a few rows; see `quantized_groups`.

    Steps over a share of the range give values, a line through numbers over values gives better
    steps, and so on. The best one so far is kept, and more lines are drawn from the best share.
    """
    wide = rows.float().unflatten(1, (-1, size))
    low, high = wide.aminmax(dim=2, keepdim=True)
    lines = _Lines(wide - (mean := wide.mean(2, keepdim=True)), low, high, mean)
    for share in RANGES:
        step = (high - low) * (share / MOST)
        # The middle of the range stays.
        middle = (mean - low) / step - MOST * (1 / share - 1) / 2
        for _ in range(LINES):
            step, middle = lines.draw(step, middle)
    for _ in range(LINES):
        lines.draw(lines.step, lines.middle)
    zero = lines.middle - mean / lines.step
    values = torch.addcmul(zero, wide, 1 / lines.step).round_().clamp_(0, MOST)
    return values.flatten(1).to(torch.int8), lines.step.squeeze(2), zero.squeeze(2)


class _Lines:
    """The best line through each group's numbers so far.

    Args:
        centered: [rows, groups, size], less the mean of each group.
        low, high, mean: Of each group.

    Attributes:
        step: Of the line.
        middle: The value, between integers, where the mean lies.
    """

    def __init__(self, centered: Tensor, low: Tensor, high: Tensor, mean: Tensor) -> None:
        self._centered = centered
        # Where all are alike, they are the least of them, whatever the step.
        alike = low.abs().clamp(min=torch.finfo(torch.float32).tiny)
        self.step = torch.where(high > low, (high - low) / MOST, alike)
        self.middle = (mean - low) / self.step
        self._gain = torch.zeros_like(low)
        self._values, self._products = torch.empty_like(centered), torch.empty_like(centered)

    def draw(self, step: Tensor, middle: Tensor) -> tuple[Tensor, Tensor]:
        """Draw a line through numbers over values of such steps, and keep it if it is better.

        It explains `gain` of the numbers' variance.

        Returns:
            The line's own step and middle.
        """
        values = torch.addcmul(middle, self._centered, 1 / step, out=self._values)
        values.round_().clamp_(0, MOST)
        middle = values.mean(2, keepdim=True)
        product = torch.mul(values, self._centered, out=self._products).mean(2, keepdim=True)
        squares = torch.linalg.vector_norm(values, dim=2, keepdim=True).square_()
        spread = squares.div_(values.shape[2]).addcmul_(middle, middle, value=-1)
        step = product / spread
        gain = product * step
        better = gain > self._gain
        self._gain = torch.where(better, gain, self._gain)
        self.step = torch.where(better, step, self.step)
        self.middle = torch.where(better, middle, self.middle)
        return step, middle


class Floats(OnlineFormat):
    """8-bit floats; experts multiply x as it is, as those of stored ones.

    Args:
        weight: Their form.
        activation: That of x.
    """

    def __init__(
        self, weight: QuantSpec = ROWS_OF_FLOATS, activation: QuantSpec = TOKENS_OF_FLOATS
    ) -> None:
        super().__init__(Storage(weight, activation))
        self._experts = Storage(weight)

    def storage(self, layer: str, shape: tuple[int, int]) -> Storage | None:
        """Return the form of a matrix."""
        return self._experts if EXPERTS in layer else super().storage(layer, shape)


def int8() -> OnlineFormat:
    """Quantize weights and activations to integers."""
    weight = QuantSpec("int8", "channel", online=True)
    return OnlineFormat(Storage(weight, QuantSpec("int8", "token", dynamic=True)))


def int8_weights() -> OnlineFormat:
    """Quantize weights alone, with a scale per output channel."""
    return OnlineFormat(Storage(QuantSpec("int8", "channel", online=True)))


class Mixed(OnlineFormat):
    """Integers of eight bits; x is quantized too where it has no columns much larger than others.

    That is what attention has summed up, and what a norm without such columns hands to an MLP. What
    queries, keys and values are made of has them, and so has the product with a gate.

    Args:
        format: Of x there, and of the weights that it meets.
        even: Which matrices these are.
    """

    def __init__(self, format: str = "int8", even: re.Pattern[str] = EVEN) -> None:
        super().__init__(Storage(QuantSpec("int8", "channel", online=True)))
        token = QuantSpec(format, "token", dynamic=True)
        self._even = Storage(QuantSpec(format, "channel", online=True), token)
        self._is_even = even

    def storage(self, layer: str, shape: tuple[int, int]) -> Storage | None:
        """Return the form of a matrix; experts of a mixture have one form for all of theirs."""
        if EXPERTS not in layer and self._is_even.search(layer):
            return self._even
        return super().storage(layer, shape)


class MixedFloats(Mixed):
    """The same with 8-bit floats where they lose least, whose scales by row are fitted.

    A float is wrong by a share of itself, which depends on where between two powers of two it lies.
    So does the error of a row, by its scale.
    """

    def __init__(self) -> None:
        super().__init__(FLOAT, INNER)
        self._even = Storage(QuantSpec(FLOAT, "channel"), TOKENS_OF_FLOATS)

    def canonical(
        self, layer: str, tensors: Mapping[str, Sequence[Tensor]]
    ) -> Mapping[str, Sequence[Tensor]]:
        """Quantize the pieces of a matrix of floats; kernels do it to others."""
        if self.recipe(layer) is None:
            return tensors
        made = [quantized_floats(part) for part in tensors["weight"]]
        names = ("weight", "weight_scale")
        return dict(tensors) | dict(zip(names, map(list, zip(*made, strict=True)), strict=True))

    def recipe(self, layer: str) -> str | None:
        """See `hotshoe.layers.formats.CostlyFormat`."""
        floats = EXPERTS not in layer and self._is_even.search(layer)
        return FLOAT_RECIPE if floats else None


def quantized_floats(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize a matrix to 8-bit floats, by the scale of each row that errs least of some.

    Args:
        weight: [rows, columns].

    Returns:
        Values float8_e4m3fn [rows, columns], and scales float32 [rows, 1].
    """
    strip = STRIP if weight.device == HOST else STRIP_THERE
    strips = weight.split(max(1, strip // weight.shape[1]))
    values, scales = zip(*map(_fitted_floats, strips), strict=True)
    return torch.cat(values), torch.cat(scales)


def _fitted_floats(rows: Tensor) -> tuple[Tensor, Tensor]:
    wide = rows.float()
    sizes = wide.abs()
    least = sizes.amax(1, keepdim=True) / LARGEST
    least = torch.where(least == 0, torch.ones_like(least), least)
    best, fewest = least, torch.full_like(least, torch.inf)
    found, powers = torch.empty_like(sizes), torch.empty_like(sizes)
    for step in range(SCALES):
        scale = least * 2 ** (step / SCALES)
        round_floats(torch.div(sizes, scale, out=found), powers)
        errors = torch.addcmul(sizes, found, scale, value=-1, out=found)
        error = torch.linalg.vector_norm(errors, dim=1, keepdim=True)
        best = torch.where(error < fewest, scale, best)
        fewest = torch.minimum(error, fewest)
    return (wide / best).clamp_(-LARGEST, LARGEST).to(E4M3), best


def round_floats(sizes: Tensor, powers: Tensor) -> None:
    """Round float32 from 0 to `LARGEST` in place to values of E4M3.

    It is several times as fast as a cast and the way back. A sum with a number that is `DIGITS`
    larger keeps the digits that E4M3 has: three behind the first, and none below the least.

    Args:
        sizes: Contiguous.
        powers: Of the same form; for the powers of two below them.
    """
    torch.bitwise_and(sizes.view(torch.int32), EXPONENT, out=powers.view(torch.int32))
    powers.mul_(DIGITS).clamp_(min=LEAST_NORMAL * DIGITS)
    sizes.add_(powers).sub_(powers)


class MixedGroups(Grouped):
    """Groups of four bits where a model loses little by them, and eight bits by row elsewhere.

    Queries, keys and values, and what follows the product with a gate, lose two thirds of what four
    bits lose, and are two fifths of the weights, or less.
    """

    def __init__(self, size: int = 64) -> None:
        super().__init__(size)
        self._others = Storage(QuantSpec("int8", "channel", online=True))

    def storage(self, layer: str, shape: tuple[int, int]) -> Storage | None:
        """Return the form of a matrix; experts of a mixture have one form for all of theirs."""
        return super().storage(layer, shape) if self._is_grouped(layer) else self._others

    def canonical(
        self, layer: str, tensors: Mapping[str, Sequence[Tensor]]
    ) -> Mapping[str, Sequence[Tensor]]:
        """Quantize the pieces of a grouped matrix; kernels do it to others."""
        return super().canonical(layer, tensors) if self._is_grouped(layer) else tensors

    def recipe(self, layer: str) -> str | None:
        """See `hotshoe.layers.formats.CostlyFormat`."""
        return super().recipe(layer) if self._is_grouped(layer) else None

    def _is_grouped(self, layer: str) -> bool:
        return EXPERTS in layer or EVEN.search(layer) is not None


def int4(size: int = 32) -> OnlineFormat:
    """Quantize weights alone, to four bits, with a scale for each group of inputs."""
    return Grouped(size)


fp8 = Floats
fp8_block = partial(Floats, BLOCKS_OF_FLOATS, GROUPS_OF_FLOATS)
fp8_mixed = MixedFloats
int8_mixed = Mixed
int4_mixed = MixedGroups
int4_64 = partial(int4, 64)
int4_128 = partial(int4, 128)
