"""Reference of slot `sparse_mla_attention`: gathers the chosen rows of each query, float32 inside.

Queries of all requests are computed alike, the absorbed way: a row that one query chose is read for
this query alone, so that making keys and values of it would serve no other.
"""

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.mixers import LatentAdapters
from hotshoe.slots.reference.mla_attention import MlaAttention, values, widened
from hotshoe.slots.reference.rows import unpacked
from hotshoe.slots.specs import MlaAttentionSpec, SparseMlaSpec
from hotshoe.slots.step import AttentionMetadata, whole_step

#: Numbers of gathered rows, and scores, that are held at once; at least those of one query.
MOST_NUMBERS = 1 << 24


class SparseMlaAttention:
    """See `hotshoe.slots.SparseMlaOp`."""

    prepare = staticmethod(whole_step)

    def __init__(self, spec: SparseMlaSpec, facts: DeviceFacts) -> None:
        self._spec = spec.attention
        self._dense = MlaAttention(spec.attention, facts)  # has the matrix, and writes alike
        self.load, self.state = self._dense.load, self._dense.state
        self.nbytes, self.write = self._dense.nbytes, self._dense.write

    def __call__(
        self,
        q: Tensor,
        cache: Tensor,
        prepared: AttentionMetadata,
        chosen: Tensor,
        adapters: LatentAdapters | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        spec, size, up = self._spec, self._spec.block_size, self._dense.up.float()
        rows, chosen = cache.flatten(0, 1), chosen[:, : prepared.max_seq_len].long()
        tokens = torch.arange(len(q), device=q.device)
        requests = torch.searchsorted(prepared.query_start_loc[1:].long(), tokens, right=True)
        # Adapters count a whole step's tokens.
        whole = None if adapters is None else widened(spec, q, up, adapters)
        out = q.new_empty((len(q), spec.num_heads, spec.v_dim))
        most = max(spec.row.channels, spec.num_heads) * chosen.shape[1]
        for begin in range(0, len(q), step := max(1, MOST_NUMBERS // most)):
            part = slice(begin, begin + step)
            at = chosen[part].clamp(min=0)
            blocks = prepared.block_table[requests[part].unsqueeze(1), at // size].long()
            found = unpacked(spec.row, rows[blocks * size + at % size])
            wide = widened(spec, q[part], up) if whole is None else whole[part]
            own = attend(spec, wide, q[part], found, chosen[part] >= 0, sinks)
            if whole is None:
                out[part] = values(spec, own, up, q.dtype)
            else:
                whole[part] = own  # nothing reads its queries again
        if whole is not None:
            out = values(spec, whole, up, q.dtype, adapters)
        return out.flatten(1)


def attend(
    spec: MlaAttentionSpec,
    wide: Tensor,
    q: Tensor,
    rows: Tensor,
    meant: Tensor,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend with each query to rows of its own.

    Args:
        spec: The slot's specification.
        wide: [n, num_heads, latent_dim] float32: what U made of q.
        q: [n, num_heads, nope_dim + rope_dim], rotated.
        rows: [n, k, latent_dim + rope_dim].
        meant: [n, k] bool; other rows do not exist.
        sinks: [num_heads] float32, logits beside those of rows; None for none.

    Returns:
        [n, num_heads, latent_dim] float32: averages of latents.
    """
    rows = rows.float().masked_fill(~meant.unsqueeze(-1), 0)  # not even NaN of them may count
    both = torch.cat((wide, q[..., spec.nope_dim :].float()), dim=-1)
    scores = torch.einsum("qhr,qlr->qhl", both, rows) * spec.scale
    scores = scores.masked_fill(~meant.unsqueeze(1), -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.float().expand(len(q), -1).unsqueeze(-1)), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : rows.shape[1]]
    return torch.einsum("qhl,qlr->qhr", weights, rows[..., : spec.latent_dim])
