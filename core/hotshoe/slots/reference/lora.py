"""Reference of slot `lora`."""

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.operations import LoraOp, LoraTokens
from hotshoe.slots.specs import LoraSpec

#: Adapters up to which all tokens are multiplied by all of them.
TOGETHER = 64
#: Numbers of 4 bytes to a multiple of which kernels are compiled once.
ALIGNED = 4


def tokens_of(places: Tensor, max_adapters: int, device: str) -> LoraTokens:
    """Bring to a device which adapter each token has.

    Args:
        places: [num_tokens] int32 on the host, -1 for no adapter.
        max_adapters: Places that there are.
        device: Where tokens are computed.
    """
    count, ends = len(places), max_adapters + 1
    packed = torch.zeros(3, -(-max(count, ends) // ALIGNED) * ALIGNED, dtype=torch.int32)
    last = torch.where(places < 0, max_adapters, places)
    packed[0, :count] = places
    packed[1, :count] = torch.argsort(last, stable=True)
    counts = torch.bincount(last, minlength=ends)
    packed[2, 1:ends] = counts[:max_adapters].cumsum(0)
    used = counts[:max_adapters].nonzero().flatten().tolist()
    there = packed.to(device)  # at once
    return LoraTokens(there[0, :count], there[1, :count], there[2, :ends], used)


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
