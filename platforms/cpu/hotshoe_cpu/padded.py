"""Candidates `padded` of slots `attention` and `rotary_and_cache`: values narrower than keys, by
the kernels for heads of one width; see `hotshoe.slots.narrow`."""

from hotshoe.slots import narrow
from hotshoe_cpu import attention, rotary

supports = narrow.supports(attention.supports)
supports_writing = narrow.supports(rotary.supports)
declared_layout = narrow.declared_layout(attention.declared_layout)
Attention = narrow.attention(attention.Attention)
RotaryAndCache = narrow.rotary_and_cache(rotary.RotaryAndCache)
