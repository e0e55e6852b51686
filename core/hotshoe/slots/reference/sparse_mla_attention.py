"""Reference of slot `sparse_mla_attention`: gathers the chosen rows of each query, float32 inside.

Queries of all requests are computed alike, the absorbed way: a row that one query chose is read for
this query alone, so that making keys and values of it would serve no other.
"""

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.reference.mla_attention import MlaAttention
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
        self, q: Tensor, cache: Tensor, prepared: AttentionMetadata, chosen: Tensor
    ) -> Tensor:
        spec, size = self._spec, self._spec.block_size
        rows, up = cache.flatten(0, 1), self._dense.up
        chosen = chosen[:, : prepared.max_seq_len].long()
        tokens = torch.arange(len(q), device=q.device)
        requests = torch.searchsorted(prepared.query_start_loc[1:].long(), tokens, right=True)
        most = max(spec.row.channels, spec.num_heads) * chosen.shape[1]
        out = q.new_empty((len(q), spec.num_heads, spec.v_dim))
        for begin in range(0, len(q), step := max(1, MOST_NUMBERS // most)):
            part = slice(begin, begin + step)
            at = chosen[part].clamp(min=0)
            blocks = prepared.block_table[requests[part].unsqueeze(1), at // size].long()
            slots = blocks * size + at % size
            found = unpacked(spec.row, rows[slots])
            out[part] = attend(spec, q[part], found, chosen[part] >= 0, up)
        return out.flatten(1)


def attend(spec: MlaAttentionSpec, q: Tensor, rows: Tensor, meant: Tensor, up: Tensor) -> Tensor:
    """Attend with each query to rows of its own.

    Args:
        q: [n, num_heads, nope_dim + rope_dim], rotated.
        rows: [n, k, latent_dim + rope_dim].
        meant: [n, k] bool; other rows do not exist.
        up: [num_heads, nope_dim + v_dim, latent_dim].

    Returns:
        [n, num_heads, v_dim] in q's dtype.
    """
    to_keys, to_values = torch.split(up.float(), [spec.nope_dim, spec.v_dim], dim=1)
    plain, turned = torch.split(q.float(), [spec.nope_dim, spec.rope_dim], dim=-1)
    rows = rows.float().masked_fill(~meant.unsqueeze(-1), 0)  # not even NaN of them may count
    wide = torch.cat((torch.einsum("qhn,hnr->qhr", plain, to_keys), turned), dim=-1)
    scores = torch.einsum("qhr,qlr->qhl", wide, rows) * spec.scale
    weights = torch.softmax(scores.masked_fill(~meant.unsqueeze(1), -torch.inf), dim=-1)
    mixed = torch.einsum("qhl,qlr->qhr", weights, rows[..., : spec.latent_dim])
    return torch.einsum("qhr,hvr->qhv", mixed, to_values).to(q.dtype)
