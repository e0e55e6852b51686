"""Reference of slot `attention`: one request at a time, float32 inside, any layout.

Reads a cache of the plain layout; obvious rather than fast. The oracle of every other candidate.
"""

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.reference.kv import kv_of
from hotshoe.slots.specs import PLAIN_LAYOUT, AttentionSpec
from hotshoe.slots.step import AttentionMetadata, whole_step


class Attention:
    """Paged causal attention with windows, soft caps, sinks and ALiBi."""

    layout = PLAIN_LAYOUT
    kv_scales: Tensor | None = None
    prepare = staticmethod(whole_step)

    def __init__(self, spec: AttentionSpec, facts: DeviceFacts) -> None:
        self._spec = spec

    def __call__(
        self, q: Tensor, cache: Tensor, prepared: AttentionMetadata, sinks: Tensor | None
    ) -> Tensor:
        spec = self._spec
        paged = kv_of(cache, spec, self.layout, self.kv_scales)
        out = q.new_empty((*q.shape[:2], spec.value_dim))
        starts = prepared.query_start_loc.tolist()
        lengths = prepared.seq_lens.tolist()
        for i in range(prepared.num_reqs):
            begin, end, length = starts[i], starts[i + 1], lengths[i]
            blocks = prepared.block_table[i, : -(-length // spec.block_size)]
            k, v = paged.gather(blocks, length)
            out[begin:end] = attend(spec, q[begin:end], k, v, sinks)
        return out.flatten(1)


def attend(
    spec: AttentionSpec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    hidden: Tensor | None = None,
    logits: Tensor | None = None,
) -> Tensor:
    """Attend with the last len(q) positions of one sequence.

    Args:
        q: [query_len, num_heads, head_dim].
        k, v: [seq_len, num_kv_heads, head_dim], values of v_head_dim channels.
        sinks: [num_heads] float32 or None.
        hidden: [query_len, seq_len] bool, keys that queries do not see beside later ones.
        logits: [num_heads, query_len, seq_len] float32, what scores grow by.

    Returns:
        [query_len, num_heads, v_head_dim] in q's dtype.
    """
    group = spec.num_heads // spec.num_kv_heads
    keys = k.float().repeat_interleave(group, dim=1)
    values = v.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    query_len, seq_len = q.shape[0], k.shape[0]
    query_pos = torch.arange(seq_len - query_len, seq_len, device=q.device)[:, None]
    key_pos = torch.arange(seq_len, device=q.device)[None, :]
    if spec.alibi is not None:
        slopes = torch.tensor(spec.alibi.slopes(spec.num_heads), device=q.device)
        scores = scores - slopes[:, None, None] * (query_pos - key_pos)
    if logits is not None:
        scores = scores + logits
    visible = key_pos <= query_pos
    if spec.window is not None:
        visible &= key_pos > query_pos - spec.window
    if hidden is not None:
        visible = visible & ~hidden
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        column = sinks.float().view(-1, 1, 1).expand(-1, query_len, 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :seq_len]
    return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
