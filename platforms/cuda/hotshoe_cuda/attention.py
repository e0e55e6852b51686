"""Candidate `cudnn` of slot `attention`: long prompts by cuDNN, everything else as `streaming`.

cuDNN's kernel computes a whole prompt faster, from contiguous keys and values; collecting them from
their blocks costs little then. A prompt whose beginning is cached already, or was computed in an
earlier step, stays with the paged kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, AttentionSpec, Verdict, accept_unless
from hotshoe_cuda import prompt
from hotshoe_triton import attention

SCORE = 60
#: Tokens from which a prompt is worth collecting its keys and values.
LONG = 2048
MAX_HEAD_DIM = 128


def supports(spec: AttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge what cuDNN adds; the rest is judged as for Triton."""
    refusals = {
        f"kv_dtype {spec.kv_dtype} differs from dtype {spec.dtype}": spec.kv_dtype != spec.dtype,
        f"faster on sm_90 alone, as far as is known, not on {facts.arch}": "wgmma"
        not in facts.features,
        "windows, soft caps and sinks are not computed": spec.window is not None
        or spec.softcap is not None
        or spec.sinks,
        "scores do not fall with the distance (ALiBi)": spec.alibi is not None,
        f"head_dim {spec.head_dim} exceeds {MAX_HEAD_DIM}": spec.head_dim > MAX_HEAD_DIM,
        f"element type {spec.dtype} has no kernel": spec.dtype == "float32",
    }
    paged = attention.supports(spec, facts)
    return accept_unless(refusals, SCORE, "cuDNN for long prompts") if paged.accepted else paged


class Attention(prompt.Attention):
    """See `hotshoe.slots.AttentionOp`."""

    def __init__(self, spec: AttentionSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts, stream=prompt.supports(spec, facts).accepted)
        from hotshoe_cuda.gather import gather_blocks

        self._spec, self._gather = spec, gather_blocks
        self._prepared = False

    def __call__(
        self, q: Tensor, cache: Tensor, prepared: AttentionMetadata, sinks: Tensor | None
    ) -> Tensor:
        if prepared.max_query_len < LONG or prepared.host_lens is None:
            return super().__call__(q, cache, prepared, sinks)
        outs = [self._part(q, cache, prepared, *part) for part in parts(*prepared.host_lens)]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _part(
        self, q: Tensor, cache: Tensor, prepared: AttentionMetadata, first: int, last: int, at: int
    ) -> Tensor:
        """Compute requests first..last, whose queries begin at token `at`."""
        counts, lengths = (lens[first:last] for lens in prepared.host_lens or ((), ()))
        part = q[at : at + sum(counts)]
        long = is_long(counts[0], lengths[0])
        if long and self._prepared:
            return self._whole(part, cache, prepared.block_table[first])
        part_of = AttentionMetadata(
            num_reqs=last - first,
            query_start_loc=prepared.query_start_loc[first : last + 1] - at,
            seq_lens=prepared.seq_lens[first:last],
            block_table=prepared.block_table[first:last],
            slot_mapping=prepared.slot_mapping[at : at + len(part)],
            max_query_len=max(counts),
            max_seq_len=max(lengths),
        )
        out = super().__call__(part, cache, part_of, None)
        if long:
            # No start makes a step behind a long context. Its kernel is compiled here, in the first
            # step of long prompts, which a start does make; later ones are cuDNN's.
            self._prepared = True
            return self._whole(part, cache, prepared.block_table[first])
        return out

    def _whole(self, q: Tensor, cache: Tensor, blocks: Tensor) -> Tensor:
        """Compute one prompt [tokens, heads, head_dim] from its first token on."""
        spec = self._spec
        k, v = self._gather(cache, blocks, len(q), spec)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(
                q.transpose(0, 1)[None], k, v, is_causal=True, scale=spec.scale, enable_gqa=True
            )
        return out[0].transpose(0, 1).reshape(len(q), -1)


def is_long(num_queries: int, seq_len: int) -> bool:
    """Tell whether cuDNN computes a request: a long prompt, all of it in this step."""
    return num_queries == seq_len >= LONG


def parts(counts: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, int, int]]:
    """Split a step into long prompts and stretches of others: (first, last, first token)."""
    found: list[tuple[int, int, int]] = []
    at = 0
    was_long = True
    for i, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        long = is_long(count, length)
        if long or was_long:
            found.append((i, i + 1, at))
        else:
            first, _, begin = found[-1]
            found[-1] = (first, i + 1, begin)
        was_long = long
        at += count
    return found
