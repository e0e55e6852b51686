"""Values narrower than keys, for kernels that know heads of one width.

The cache has room for values as wide as keys, zeros fill it, and what attention makes of them is
cut off. A sixth of the cache is empty so where values have two thirds of the channels of keys.
A platform makes its candidates `padded` of those that it has: `supports`, `declared_layout`,
`attention` and `rotary_and_cache` each take the like of a kernel and return that of a candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from hotshoe.platform import DeviceFacts
from hotshoe.slots.specs import AttentionSpec, KVLayout, RotaryAndCacheSpec
from hotshoe.slots.verdict import Verdict, accept, refuse

if TYPE_CHECKING:
    from torch import Tensor

#: Behind whoever reads values as narrow as they are.
SCORE = 50

AnySpec = TypeVar("AnySpec", AttentionSpec, RotaryAndCacheSpec)
Operation = TypeVar("Operation", bound=type)


def even(spec: AnySpec) -> AnySpec:
    """Return what a kernel is asked for: heads of one width, and its own layout."""
    if isinstance(spec, RotaryAndCacheSpec):
        layout = replace(spec.layout, wide_values=False)
        return replace(spec, v_head_dim=None, layout=layout)
    return replace(spec, v_head_dim=None)


def with_room(layout: KVLayout) -> KVLayout:
    """Return a kernel's layout with room for values as wide as keys."""
    return replace(layout, wide_values=True)


def judge(spec: AttentionSpec | RotaryAndCacheSpec, verdict: Verdict) -> Verdict:
    """Judge a specification whose even one a kernel has judged."""
    v_head_dim, head_dim = spec.v_head_dim, spec.head_dim
    if v_head_dim is None or not 0 < v_head_dim < head_dim:
        return refuse("values have as many channels as keys")
    if isinstance(spec, RotaryAndCacheSpec) and not spec.layout.wide_values:
        return refuse(f"layout {spec.layout.name} has no room for values as wide as keys")
    if spec.kv_dtype != spec.dtype:
        return refuse(f"kv_dtype {spec.kv_dtype} differs from dtype {spec.dtype}")
    if not verdict.accepted:
        return verdict
    return accept(SCORE, f"{verdict.reason}; values of {v_head_dim} channels take {head_dim}")


def widened(qkv: Tensor, spec: RotaryAndCacheSpec) -> Tensor:
    """Return [num_tokens, channels of q, k and v] with values as wide as keys."""
    heads, dim = spec.num_kv_heads, spec.value_dim
    before = qkv.shape[1] - heads * dim
    wide = qkv.new_zeros(len(qkv), before + heads * spec.head_dim)
    wide[:, :before] = qkv[:, :before]
    values = wide[:, before:].view(-1, heads, spec.head_dim)
    values[..., :dim] = qkv[:, before:].view(-1, heads, dim)
    return wide


def narrowed(out: Tensor, spec: AttentionSpec) -> Tensor:
    """Return [num_tokens, num_heads * value_dim] of results as wide as keys."""
    return out.view(-1, spec.num_heads, spec.head_dim)[..., : spec.value_dim].flatten(1)


def supports(
    judge_even: Callable[[AnySpec, DeviceFacts], Verdict],
) -> Callable[[AnySpec, DeviceFacts], Verdict]:
    """Return what judges specifications with narrow values as a kernel judges even ones."""
    return lambda spec, facts: judge(spec, judge_even(even(spec), facts))


def declared_layout(
    of_kernel: Callable[[AttentionSpec, DeviceFacts], KVLayout],
) -> Callable[[AttentionSpec, DeviceFacts], KVLayout]:
    """Return what says which layout is read."""
    return lambda spec, facts: with_room(of_kernel(even(spec), facts))


def attention(kernel: Operation) -> Operation:
    """Return a kernel's `AttentionOp` class for narrow values."""

    class Attention(kernel):  # type: ignore[misc,valid-type]
        """See `hotshoe.slots.AttentionOp`."""

        layout: KVLayout

        def __init__(self, spec: AttentionSpec, facts: DeviceFacts) -> None:
            super().__init__(even(spec), facts)
            self.layout, self._narrow = with_room(self.layout), spec

        def __call__(self, *arguments: Any) -> Tensor:
            return narrowed(super().__call__(*arguments), self._narrow)

    return Attention  # type: ignore[return-value]


def rotary_and_cache(kernel: Operation) -> Operation:
    """Return a kernel's `RotaryAndCacheOp` class for narrow values."""

    class RotaryAndCache(kernel):  # type: ignore[misc,valid-type]
        """See `hotshoe.slots.RotaryAndCacheOp`."""

        def __init__(self, spec: RotaryAndCacheSpec, facts: DeviceFacts) -> None:
            super().__init__(even(spec), facts)
            self._narrow = spec

        def __call__(self, qkv: Tensor, *arguments: Any) -> Tensor:
            return super().__call__(widened(qkv, self._narrow), *arguments)  # type: ignore[no-any-return]

    return RotaryAndCache  # type: ignore[return-value]
