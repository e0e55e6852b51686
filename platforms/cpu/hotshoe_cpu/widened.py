"""Candidates `widened` and `rounding` of slot `linear`: quantized weights held as plain numbers, by
the kernel for these; see `hotshoe.slots.wide_weights`."""

from hotshoe.slots import plain_bytes, wide_weights
from hotshoe_cpu import linear

supports = wide_weights.supports(linear.supports)
supports_rounding = wide_weights.supports_rounding(linear.supports)
weight_bytes = plain_bytes
Linear = wide_weights.linear(linear.Linear)
Rounding = wide_weights.rounding(linear.Linear)
