"""Matrix memory: linear attention whose tokens are taken in and forgotten by gates of their own.

Each head keeps C = f C + i v k^T and n = f n + i k, and puts out C q / max(|n q|, 1). A state-space
block computes both. A step of time is softplus(-raw) for the raw gate of f, so that exp(-step) is
sigmoid(raw). x is v with a 1 behind it, times i / step; B and C are k and q. So n is a further row
of C. Nothing is convolved and nothing activated.

Raw gates go no farther than a cap, so i is at most exp(cap), and sums over a long text are far
within float32: no running maximum divides them. A layer norm of each head follows, in which a
factor of the head cancels. So the small number that xLSTM adds to the denominator is left out.

Sources: Beck et al. 2024, arXiv:2405.04517, section 2.3 (mLSTM); Beck et al. 2025,
arXiv:2503.13427 (caps).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from hotshoe.errors import ConfigError
from hotshoe.layers import BuildContext, ForwardBatch, Linear, Matrix, Section
from hotshoe.layers.states import StateLayer
from hotshoe.slots import Quantized, StateSpaceSpec, StateSpaceWeights
from hotshoe_models.head_norms import OwnNorms
from hotshoe_models.mlps import parts_of
from hotshoe_models.spec import DecoderSpec

if TYPE_CHECKING:
    from hotshoe_models.mixers import Rotaries

HEADS = "heads of matrix memory"
SLOT = "state_space"
#: Tokens that the convolution sees: the least that there may be.
WIDTH = 2


class MemoryMixer:
    """See `hotshoe_models.mixers.Mixer`."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Rotaries) -> None:
        block, heads, size = spec.memory, spec.num_heads, spec.hidden_size
        assert block is not None
        prefix = f"{spec.names.layer.format(i)}{block.name}."
        quantize, bias = spec.quantizes("state", ctx.format), spec.qkv_bias
        split, matrix = partial(ctx.split, HEADS), partial(Matrix, ctx)
        keys, values = Section(heads, block.key_dim), Section(heads, spec.head_dim)
        each, own = (keys, keys, values, values), split(values)
        rows = parts_of(prefix, block.projections, [part.units * part.width for part in each])
        made = matrix(rows, size, bias=bias, quantize=quantize, outputs=split(*each))
        self._rows = Linear(ctx, made)
        gates, both = (
            parts_of(prefix, block.gates, [heads] * 2),
            split(Section(heads), Section(heads)),
        )
        made = matrix(gates, size, bias=True, quantize=not ctx.format.online, outputs=both)
        self._gates = Linear(ctx, made, out_dtype="float32")
        out, inner = [(f"{prefix}{block.out}", size)], heads * spec.head_dim
        self._out = Linear(ctx, matrix(out, inner, bias=bias, quantize=quantize, inputs=own))
        wide = replace(ctx, dtype="float32")  # where n q is near 0, results may leave 16 bits
        self._norm = OwnNorms(spec, wide, f"{prefix}{block.norm}", heads, own, flat=True)
        self._memory = Memory(ctx, both.size // 2, block.key_dim, spec.head_dim, block.gate_cap)
        self._width, self.input_quant = own.size, None

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `Mixer`."""
        rows = self._rows(hidden)
        out, gates = self._memory.read(rows, self._gates(hidden), batch), rows[:, -self._width :]
        if keep is not None:
            out, gates = out[keep], gates[keep]
        return self._out(self._norm(out).to(rows.dtype).mul_(torch.sigmoid(gates)))


class Memory(StateLayer[StateSpaceSpec]):
    """Matrix memories of heads. The state of each is [value_dim + 1, key_dim].

    Args:
        heads: This rank's.
        cap: Raw gates x go into activations as cap * tanh(x / cap).

    Raises:
        ConfigError: States are to be kept in float16.
    """

    def __init__(
        self, ctx: BuildContext, heads: int, key_dim: int, value_dim: int, cap: float
    ) -> None:
        if ctx.state_dtype == "float16":
            raise ConfigError(
                "state_dtype float16 ends at 65,504, which sums of a matrix memory may pass; "
                "use float32 or bfloat16"
            )
        self._sizes, self._cap = (heads, key_dim, value_dim), cap
        state, types = (heads, value_dim + 1, key_dim), ("float32", "float32", ctx.state_dtype)
        places = ctx.block_size, ctx.checkpoints
        spec = StateSpaceSpec(*state, heads, WIDTH, *types, *places, activation="identity")
        super().__init__(ctx, SLOT, spec, state, StateSpaceWeights)
        # Ready before a step may be recorded.
        place = {"device": ctx.device, "dtype": torch.float32}
        self._ones = torch.ones(1, spec.inner_size, **place)
        conv = torch.zeros(spec.conv_size, WIDTH, **place)
        conv[:, -1] = 1
        nothing = torch.zeros(heads, **place)
        self._weights = StateSpaceWeights(conv, None, nothing - 1, nothing, nothing, None)

    def read(self, rows: Tensor, gates: Tensor, batch: ForwardBatch) -> Tensor:
        """Take tokens in, and return what each finds.

        Args:
            rows: q, k, v, then others, [num_tokens, channels].
            gates: Raw gates of taking in, and of forgetting, [num_tokens, 2 * heads] float32.

        Returns:
            [num_tokens, heads * value_dim] float32.
        """
        heads, key_dim, value_dim = self._sizes
        count, keys, values = len(rows), heads * key_dim, heads * value_dim
        taken, forgets = torch.tanh(gates / self._cap).mul_(self._cap).chunk(2, dim=-1)
        weight = (torch.exp(taken) / functional.softplus(-forgets))[..., None]
        q, k, v = rows[:, : 2 * keys + values].float().split([keys, keys, values], dim=-1)
        ones = self._ones.expand(count, -1)
        x = torch.cat((v.view(count, heads, -1), ones[:, :heads, None]), dim=-1) * weight
        made = (ones, x.view(count, -1), k, q * key_dim**-0.5, -forgets)
        found = self(torch.cat(made, dim=-1), batch).view(count, heads, -1)
        norm = found[..., value_dim:].abs().clamp(min=1.0)
        return (found[..., :value_dim] / norm).view(count, -1)
