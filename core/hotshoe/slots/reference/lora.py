"""Reference of slot `lora`."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.operations import LoraOp, LoraTokens
from hotshoe.slots.specs import LoraSpec

#: Adapters up to which all tokens are multiplied by all of them.
TOGETHER = 64
Ints: TypeAlias = npt.NDArray[np.int32]


def arranged(places: Ints, max_adapters: int, length: int) -> tuple[list[Ints], list[int]]:
    """Return what `LoraTokens` has, on the host.

    Args:
        places: [num_tokens], -1 for no adapter.
        max_adapters: Places that there are.
        length: Of the arrays of tokens; those behind `num_tokens` have no adapter.
    """
    last = np.full(length, max_adapters, np.int32)
    np.copyto(last[: len(places)], places, where=places >= 0)
    counts = np.bincount(last, minlength=max_adapters + 1)[:max_adapters]
    starts = np.zeros(max_adapters + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    order = np.argsort(last, kind="stable").astype(np.int32)
    known = np.where(last == max_adapters, np.int32(-1), last)
    return [known, order, starts], np.flatnonzero(counts).tolist()


def tokens_of(places: Tensor, max_adapters: int, device: str) -> LoraTokens:
    """Bring to a device which adapter each token has.

    Args:
        places: [num_tokens] int32 on the host, -1 for no adapter.
        max_adapters: Places that there are.
        device: Where tokens are computed.
    """
    arrays, used = arranged(places.numpy(), max_adapters, len(places))
    there, order, starts = (torch.from_numpy(array).to(device) for array in arrays)
    return LoraTokens(there, order, starts, used)


def ordered(places: Tensor, max_adapters: int) -> LoraTokens:
    """Return the same of places [num_tokens] int32 that are on the device already."""
    last = torch.where(places < 0, max_adapters, places)
    sorted_, order = last.sort(stable=True)
    ends = torch.arange(max_adapters + 1, dtype=torch.int32, device=places.device)
    starts = torch.searchsorted(sorted_, ends, out_int32=True)
    return LoraTokens(places, order.to(torch.int32), starts, range(max_adapters))


def build(spec: LoraSpec, facts: DeviceFacts) -> LoraOp:
    """Multiply all tokens by all adapters that are used, and keep of each token its own.

    Ranks are so small that two plain products cost less than products token by token, and no
    token moves. The intermediate of `rank` numbers is rounded to the type of x. More adapters are
    taken one by one: that asks the device which ones occur.
    """

    def add(y: Tensor, x: Tensor, a: Tensor, b: Tensor, tokens: LoraTokens) -> None:
        places, used = tokens.places, tokens.used
        if not used:
            return
        if len(used) > TOGETHER:
            for place in sorted(set(places.tolist())):
                rows = (places == place).nonzero().flatten()
                if place >= 0:
                    y[rows] += x[rows] @ a[place].T @ b[place]
            return
        first, end = min(used), max(used) + 1
        own = places.unsqueeze(1) == torch.arange(first, end, device=places.device)
        low = x @ a[first:end].flatten(0, 1).T  # [num_tokens, (end - first) * rank]
        kept = low.view(len(x), end - first, spec.rank).masked_fill(~own.unsqueeze(2), 0)
        y += kept.flatten(1) @ b[first:end].flatten(0, 1)

    return add
