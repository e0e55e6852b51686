"""Reference of slot `relative_attention`: one request at a time, float32 inside, any layout."""

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.reference.attention import attend
from hotshoe.slots.reference.kv import kv_of
from hotshoe.slots.relative import RelativeAttentionSpec
from hotshoe.slots.specs import PLAIN_LAYOUT
from hotshoe.slots.step import AttentionMetadata, whole_step


class RelativeAttention:
    """See `hotshoe.slots.RelativeAttentionOp`."""

    layout = PLAIN_LAYOUT
    kv_scales: Tensor | None = None
    prepare = staticmethod(whole_step)

    def __init__(self, spec: RelativeAttentionSpec, facts: DeviceFacts) -> None:
        self._spec = spec

    def __call__(
        self, q: Tensor, cache: Tensor, prepared: AttentionMetadata, profiles: Tensor
    ) -> Tensor:
        spec = self._spec.attention
        paged = kv_of(cache, spec, self.layout, self.kv_scales)
        out = q.new_empty((*q.shape[:2], spec.value_dim))
        starts, lengths = prepared.query_start_loc.tolist(), prepared.seq_lens.tolist()
        for i in range(prepared.num_reqs):
            own, length = slice(starts[i], starts[i + 1]), lengths[i]
            k, v = paged.gather(prepared.block_table[i, : -(-length // spec.block_size)], length)
            asked, states = q[own].tensor_split((spec.head_dim,), -1)
            logits = relative_logits(states, profiles, length)
            out[own] = attend(spec, asked, k, v, None, logits=logits)
        return out.flatten(1)


def relative_logits(states: Tensor, profiles: Tensor, length: int) -> Tensor:
    """Return [num_heads, query_len, length] float32, what the last positions of a sequence add.

    Args:
        states: [query_len, num_heads, states].
        profiles: [states, extent] float32.
        length: Tokens of the sequence.
    """
    by_distance = torch.einsum("qhc,cd->hqd", states.float(), profiles.float())
    keys = torch.arange(length, device=states.device)
    away = keys[length - len(states) :, None] - keys
    extent = profiles.shape[1]
    at = away.clamp(0, extent - 1).expand(by_distance.shape[0], -1, -1)
    return by_distance.gather(-1, at).masked_fill(away >= extent, 0.0)
