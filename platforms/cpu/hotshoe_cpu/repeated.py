"""Calls of PyTorch that a recorded step repeats, and how; `graph.py` sees them as they are made.

The shape of a result must follow from the shapes of the arguments, and its numbers from their
numbers. So whatever chooses by a mask, draws random numbers or answers to Python is missing here,
and a step with it is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

#: A call of PyTorch, as its function protocol names it.
Function: TypeAlias = Callable[..., Any]

#: What asks a tensor for its form. Properties are such questions, too.
QUESTIONS = frozenset(
    (Tensor.data_ptr, Tensor.dim, Tensor.numel, Tensor.size, Tensor.stride, Tensor.__len__)
)


def _of(owner: Any, names: str) -> frozenset[Function]:
    return frozenset(getattr(owner, name) for name in names.split())


#: What looks at the same memory in another way, and copies only where it cannot.
VIEWS = _of(
    Tensor,
    "__getitem__ as_strided bfloat16 chunk contiguous expand flatten float half int long permute "
    "reshape split squeeze tensor_split to transpose type type_as unbind unflatten unsqueeze view "
    "view_as",
) | {torch.functional.split, functional.dropout}
#: What changes its first argument: numbers of the step itself, or the same ones of a cache again.
CHANGES = _of(
    Tensor,
    "__iand__ __setitem__ add_ addcmul_ clamp_ copy_ div_ index_copy_ log1p_ log_ masked_fill_ "
    "mul_ relu_ scatter_ sigmoid_ square_ sub_ tanh_",
) | {torch.tanh_}
_BOTH = (
    "abs add addcmul amax bmm clamp clamp_min clone cos cumsum diff div exp gather index_select "
    "log matmul mean min minimum mul neg pow relu remainder roll rsqrt sigmoid sign sin softmax "
    "sort sqrt square sub sum tanh topk where"
)
_OF_TENSORS = (
    "__and__ __eq__ __floordiv__ __invert__ __mod__ __rdiv__ __rpow__ __xor__ all flip ge gt le "
    "lt masked_fill ne new_full new_zeros repeat repeat_interleave scatter"
)
_OF_TORCH = (
    "arange baddbmm cat einsum expm1 full full_like ones ones_like searchsorted stack zeros "
    "zeros_like"
)
_FUNCTIONAL = "embedding gelu layer_norm linear pad relu rms_norm silu softmax softplus"
#: What makes new numbers.
RESULTS = (
    _of(torch, _BOTH)
    | _of(Tensor, _BOTH)
    | _of(Tensor, _OF_TENSORS)
    | _of(torch, _OF_TORCH)
    | _of(functional, _FUNCTIONAL)
    | {torch.linalg.vector_norm}
)
#: Those of them that write to a place they are told, by what takes it.
WITH_PLACE: Mapping[Function, Function] = {
    getattr(owner, name): getattr(torch, name)
    for name in "add bmm cat index_select matmul mul sigmoid sub".split()
    for owner in (torch, Tensor)
    if hasattr(owner, name)
}


def known(func: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call can be repeated, as far as that is known before it is made."""
    if func is functional.dropout:  # which draws nothing, and returns what it gets, if not trained
        return (*args[2:3], kwargs.get("training", True))[0] is False
    if func in (Tensor.__getitem__, Tensor.__setitem__):
        return not any(index.dtype in (torch.bool, torch.uint8) for index in tensors(args[1]))
    if func is Tensor.repeat_interleave and any(True for _ in tensors(args[1:])):
        return False
    return func in VIEWS or func in CHANGES or func in RESULTS


def repetition(
    func: Function, place: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], object]:
    """Return what makes a call again, and leaves its results in `place`; None: it changes what is
    there already."""
    if place is None:
        return partial(func, *args, **kwargs)
    if func in WITH_PLACE:
        return partial(WITH_PLACE[func], *args, **kwargs, out=place)
    return partial(_renew, place, partial(func, *args, **kwargs))


def _renew(place: Any, function: Function) -> None:
    for old, new in zip(tensors(place), tensors(function()), strict=True):
        old.copy_(new)


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield every tensor of an argument or of a result."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors(part)


def replaced(value: Any, by: Callable[[Tensor], Tensor]) -> Any:
    """Return an argument or a result with other tensors in the places of its own."""
    if isinstance(value, Tensor):
        return by(value)
    if isinstance(value, tuple | list):
        parts = [replaced(part, by) for part in value]
        return parts if isinstance(value, list) else _like(value, parts)
    return value


def _like(value: tuple[Any, ...], parts: list[Any]) -> Any:
    """Return a tuple of the same kind; PyTorch has kinds with names, such as those of `topk`."""
    return tuple(parts) if type(value) is tuple else type(value)(parts)  # type: ignore[call-arg]


def shares(result: Any, args: tuple[Any, ...]) -> bool:
    """Return whether all of a result lies in memory of the first argument."""
    first = {_memory(x) for x in tensors(args[:1])}
    return all(x.numel() == 0 or _memory(x) in first for x in tensors(result))


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()
