"""Candidate `streaming` of slot `gated_delta`: prompts, on sm_90.

What no state is needed for, and steps of few tokens, go through the portable kernels. A kernel
whose products do not wait for each other takes states through chunks.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, GatedDeltaSpec, Verdict, accept_unless
from hotshoe_cuda.linear import missing_gluon
from hotshoe_triton import gated_delta
from hotshoe_triton.device import SCORE
from hotshoe_triton.gated_delta import Made

#: What the kernel is written for: tokens of a chunk, channels of a key, rows of a program's state.
TOKENS, KEYS, ROWS = 64, 128, 64


def supports(spec: GatedDeltaSpec, facts: DeviceFacts) -> Verdict:
    """Judge what the kernel is written for; the rest as the portable ones do."""
    portable = gated_delta.supports(spec, facts)
    if not portable.accepted:
        return portable
    missing, tokens = missing_gluon(facts), gated_delta.tokens_of_chunk(spec, facts)
    refusals = {
        missing: bool(missing),
        f"element type {spec.dtype} is not bfloat16": spec.dtype != "bfloat16",
        f"key_dim {spec.key_dim} is not {KEYS}": spec.key_dim != KEYS,
        f"value_dim {spec.value_dim} is no multiple of {ROWS}": spec.value_dim % ROWS != 0,
        f"chunks have {tokens} tokens, not {TOKENS}": tokens != TOKENS,
    }
    return accept_unless(refusals, SCORE + 1, "products that do not wait for each other")


class Chunks(gated_delta.Chunks):
    """Takes states through chunks by the kernel of this module."""

    def __init__(self, spec: GatedDeltaSpec, facts: DeviceFacts) -> None:
        from hotshoe_cuda.kernels.delta import carry_chunks

        super().__init__(spec, facts)
        self._stream = carry_chunks
        taken = "HEADS KEY_HEADS V FEW SPAN BLOCK_SIZE SINGLE ALL CHAINED launch_pdl".split()
        self._carry = {name: self._carry[name] for name in taken if name in self._carry}
        self._carry["num_warps"] = 4

    def _taking(
        self, y: Tensor, made: Made, cache: Tensor, step: AttentionMetadata
    ) -> Callable[[int, int], None]:
        from triton.experimental.gluon.language import NVMMASharedLayout
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        def tiles(tensor: Tensor, columns: int) -> TensorDescriptor:
            flat = tensor.view(-1, tensor.size(-1))
            layout = NVMMASharedLayout(128, 8 * tensor.element_size(), 2)
            return TensorDescriptor.from_tensor(flat, [TOKENS, columns], layout)

        spec, table = self._spec, step.block_table
        kernel = self._stream[(step.num_reqs, spec.num_heads, spec.value_dim // ROWS)]
        operands = (
            tiles(made.v, ROWS),
            tiles(made.since_k, KEYS),
            tiles(made.since_q, KEYS),
            tiles(made.solved, TOKENS),
            tiles(made.scores, TOKENS),
        )
        lengths = made.faded, made.decay, cache, table, step.query_start_loc, step.seq_lens
        strides = cache.stride(0), table.stride(0)

        def take(low: int, above: int) -> None:
            kernel(y, *operands, *lengths, low, above, len(y), *strides, **self._carry)

        return take


class GatedDelta(gated_delta.GatedDelta):
    """See `hotshoe.slots.GatedDeltaOp`."""

    chunks = Chunks
