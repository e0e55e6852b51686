"""Reference of slot `mla_attention`: one request at a time, float32 inside.

Both forms are here, as each is the check of the other. Obvious rather than fast.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.mixers import LatentAdapters
from hotshoe.slots.operations import renewed
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.reference.rotary import rotate
from hotshoe.slots.reference.rows import packed, unpacked
from hotshoe.slots.specs import MlaAttentionSpec
from hotshoe.slots.step import AttentionMetadata, whole_step


class MlaAttention:
    """See `hotshoe.slots.MlaAttentionOp`."""

    prepare = staticmethod(whole_step)

    def __init__(self, spec: MlaAttentionSpec, facts: DeviceFacts) -> None:
        self._spec = spec
        self._device = facts.device
        self.up = torch.empty(0)

    def load(self, up: Tensor) -> None:
        fresh = up.to(self._device, torch_dtype(self._spec.dtype), copy=True)
        self.up = renewed(self.up, fresh)

    def state(self) -> dict[str, Tensor]:
        return {"weight": self.up.flatten(0, 1)} if self.up.numel() else {}

    def nbytes(self) -> int:
        return self.up.nbytes

    def write(
        self,
        q: Tensor,
        latent: Tensor,
        key: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        cache: Tensor,
        slot_mapping: Tensor,
    ) -> Tensor:
        spec = self._spec
        table = cos_sin[positions.long()]
        turned = rotate(q[..., spec.nope_dim :], table, spec.interleaved)
        q = torch.cat((q[..., : spec.nope_dim], turned), dim=-1)
        key = rotate(key.unsqueeze(1), table, spec.interleaved).squeeze(1)
        slots = slot_mapping.long()
        rows = packed(spec.row, torch.cat((latent, key), dim=-1))
        cache[slots // spec.block_size, slots % spec.block_size] = rows
        return q

    def __call__(
        self,
        q: Tensor,
        cache: Tensor,
        prepared: AttentionMetadata,
        adapters: LatentAdapters | None = None,
    ) -> Tensor:
        spec = self._spec
        if adapters is not None:
            wide = widened(spec, q, self.up, adapters)
            mixed = wide.new_zeros(wide.shape)
            for own, rows in self._requests(cache, prepared):
                mixed[own] = averages(spec, wide[own], q[own], rows)
            return values(spec, mixed, self.up, q.dtype, adapters).flatten(1)
        out = q.new_empty((len(q), spec.num_heads, spec.v_dim))
        for own, rows in self._requests(cache, prepared):
            attend = absorbed if absorbs(spec, len(q[own]), len(rows)) else projected
            out[own] = attend(spec, q[own], rows, self.up)
        return out.flatten(1)

    def _requests(
        self, cache: Tensor, prepared: AttentionMetadata
    ) -> Iterator[tuple[slice, Tensor]]:
        """Go through requests: their tokens, and the rows of each [seq_len, channels]."""
        spec, size = self._spec, self._spec.block_size
        starts, lengths = prepared.query_start_loc.tolist(), prepared.seq_lens.tolist()
        for i in range(prepared.num_reqs):
            blocks = prepared.block_table[i, : -(-lengths[i] // size)].long()
            rows = cache[blocks].flatten(0, 1)[: lengths[i]]
            yield slice(starts[i], starts[i + 1]), unpacked(spec.row, rows)


def absorbs(spec: MlaAttentionSpec, query_len: int, seq_len: int) -> bool:
    """Tell whether the absorbed form multiplies less than the up-projected one.

    It takes U and V to every query instead of to every row, but its products with rows are longer.
    """
    heads_dim = spec.nope_dim + spec.v_dim
    longer = query_len * seq_len * (2 * spec.latent_dim - heads_dim)
    return longer < (seq_len - query_len) * heads_dim * spec.latent_dim


def absorbed(spec: MlaAttentionSpec, q: Tensor, rows: Tensor, up: Tensor) -> Tensor:
    """Attend with the last len(q) positions of one sequence to rows as they lie.

    Args:
        q: [query_len, num_heads, nope_dim + rope_dim], rotated.
        rows: [seq_len, latent_dim + rope_dim].
        up: [num_heads, nope_dim + v_dim, latent_dim].

    Returns:
        [query_len, num_heads, v_dim] in q's dtype.
    """
    return values(spec, averages(spec, widened(spec, q, up), q, rows), up, q.dtype)


def widened(
    spec: MlaAttentionSpec, q: Tensor, up: Tensor, adapters: LatentAdapters | None = None
) -> Tensor:
    """Take q to the size of latents [query_len, num_heads, latent_dim] float32."""
    plain = q[..., : spec.nope_dim].float()
    wide = torch.einsum("qhn,hnr->qhr", plain, up[:, : spec.nope_dim].float())
    if adapters is not None:
        wide = wide.to(q.dtype).contiguous()
        adapters.widen(wide, q.contiguous())
    return wide.float()


def averages(spec: MlaAttentionSpec, wide: Tensor, q: Tensor, rows: Tensor) -> Tensor:
    """Return what each query and head sees of latents [query_len, num_heads, latent_dim] float32.

    Args:
        spec: The slot's specification.
        wide: Of `widened`.
        q, rows: As for `absorbed`.
    """
    rows = rows.float()
    both = torch.cat((wide, q[..., spec.nope_dim :].float()), dim=-1)
    weights = _weights(spec, torch.einsum("qhr,lr->hql", both, rows))
    return torch.einsum("hql,lr->qhr", weights, rows[:, : spec.latent_dim])


def values(
    spec: MlaAttentionSpec,
    mixed: Tensor,
    up: Tensor,
    dtype: torch.dtype,
    adapters: LatentAdapters | None = None,
) -> Tensor:
    """Take averages of latents to values [query_len, num_heads, v_dim] of a type."""
    out = torch.einsum("qhr,hvr->qhv", mixed, up[:, spec.nope_dim :].float()).to(dtype)
    if adapters is not None:
        out = out.contiguous()
        adapters.values(out, mixed.to(dtype).contiguous())
    return out


def projected(spec: MlaAttentionSpec, q: Tensor, rows: Tensor, up: Tensor) -> Tensor:
    """Attend to the keys and values that rows stand for; see `absorbed`."""
    latent, key = torch.split(rows.float(), [spec.latent_dim, spec.rope_dim], dim=-1)
    both = torch.einsum("lr,hdr->lhd", latent, up.float())
    keys, values = torch.split(both, [spec.nope_dim, spec.v_dim], dim=-1)
    plain, turned = torch.split(q.float(), [spec.nope_dim, spec.rope_dim], dim=-1)
    scores = torch.einsum("qhn,lhn->hql", plain, keys)
    scores += torch.einsum("qhd,ld->hql", turned, key)
    return torch.einsum("hql,lhv->qhv", _weights(spec, scores), values).to(q.dtype)


def _weights(spec: MlaAttentionSpec, scores: Tensor) -> Tensor:
    """Scale, mask and normalize scores [num_heads, query_len, seq_len]."""
    _, query_len, seq_len = scores.shape
    query_pos = torch.arange(seq_len - query_len, seq_len, device=scores.device)[:, None]
    key_pos = torch.arange(seq_len, device=scores.device)[None, :]
    return torch.softmax((scores * spec.scale).masked_fill(key_pos > query_pos, -torch.inf), -1)
