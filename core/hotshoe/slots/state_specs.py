"""Specifications of blocks that keep a state of each sequence: `StateSpaceSpec`,
`SelectiveScanSpec`, `GatedDeltaSpec`, `ShortConvSpec`.

As `hotshoe.slots.specs`, free of torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StateSpaceSpec:
    """A Mamba-2 block between its two projections: convolution, scan, gate and norm.

    Source: Dao and Gu 2024, arXiv:2405.21060.

    Attributes:
        state_size: Entries of the state of each of num_heads * head_dim channels.
        num_groups: Heads of a group have B and C in common.
        conv_width: Tokens that the causal convolution sees, the token itself included.
        conv_dtype, state_dtype: Types in which the cache keeps what a sequence carries on.
        block_size: Tokens from one checkpoint to the next.
        checkpoints: Which states the cache keeps: "none", a sequence's latest one in its first
            block; "align", that behind a step's last token, in the block of that token; "all", in
            every block that a step completes as well.
        dt_limits: Least and largest step of time, after softplus.
        norm: RMS norm of the result: "none", or "after" or "before" the gate.
        norm_groups: Equal parts of the channels that are normed on their own.
        activation: Of the convolution and the gate: "silu", or "identity" for none of either.
    """

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    conv_width: int
    dtype: str
    conv_dtype: str
    state_dtype: str
    block_size: int
    checkpoints: str = "none"
    dt_limits: tuple[float, float] = (0.0, math.inf)
    norm: str = "none"
    norm_eps: float = 0.0
    norm_groups: int = 1
    activation: str = "silu"

    @property
    def inner_size(self) -> int:
        """Channels of x, of the gate z and of the result."""
        return self.num_heads * self.head_dim

    @property
    def group_size(self) -> int:
        """Channels of B, and of C."""
        return self.num_groups * self.state_size

    @property
    def conv_size(self) -> int:
        """Channels that the convolution runs over: x, B and C."""
        return self.inner_size + 2 * self.group_size

    @property
    def sections(self) -> tuple[int, int, int]:
        """Columns of the input: the gate z, then x, B and C, then dt."""
        return self.inner_size, self.conv_size, self.num_heads


@dataclass(frozen=True, slots=True)
class SelectiveScanSpec:
    """A Mamba-1 block between its two projections: convolution, scan and gate.

    Each channel has a decay for each entry of its state, and B, C and the step of time are made of
    what the convolution puts out, by matrices between it and the scan.

    Source: Gu and Dao 2023, arXiv:2312.00752.

    Attributes:
        inner_size: Channels of x, of the gate z and of the result.
        state_size: Entries of the state of each channel.
        dt_rank: Numbers that a token's steps of time are made of.
        conv_width, conv_dtype, state_dtype, block_size, checkpoints: As in `StateSpaceSpec`.
        norm_eps: Of RMS norms of those numbers, of B and of C; None for no norms.
    """

    inner_size: int
    state_size: int
    dt_rank: int
    conv_width: int
    dtype: str
    conv_dtype: str
    state_dtype: str
    block_size: int
    checkpoints: str = "none"
    norm_eps: float | None = None

    @property
    def conv_size(self) -> int:
        """Channels that the convolution runs over."""
        return self.inner_size

    @property
    def sections(self) -> tuple[int, int]:
        """Columns of the input: x, then the gate z."""
        return self.inner_size, self.inner_size

    @property
    def made(self) -> tuple[int, int, int]:
        """Numbers that are made of a token's x: for the steps of time, B and C."""
        return self.dt_rank, self.state_size, self.state_size


@dataclass(frozen=True, slots=True)
class RgLruSpec:
    """A recurrent block of Griffin between its projections: convolution, recurrence and gate.

    Each channel has one number as its state, which decays by a factor of the token's own. Two gates
    of a token, that of the decay and that of the input, are made of what the convolution puts out,
    by a matrix for each head.

    Source: De et al. 2024, arXiv:2402.19427, section 2.4 (RG-LRU).

    Attributes:
        inner_size: Channels of x, of the gate behind and of the result.
        num_heads: Blocks of the matrices that make gates.
        conv_width, conv_dtype, state_dtype, block_size, checkpoints: As in `StateSpaceSpec`; no
            activation follows the convolution.
    """

    inner_size: int
    num_heads: int
    conv_width: int
    dtype: str
    conv_dtype: str
    state_dtype: str
    block_size: int
    checkpoints: str = "none"

    @property
    def conv_size(self) -> int:
        """Channels that the convolution runs over."""
        return self.inner_size

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        return self.inner_size // self.num_heads

    @property
    def sections(self) -> tuple[int, int]:
        """Columns of the input: x, then the gate behind."""
        return self.inner_size, self.inner_size


@dataclass(frozen=True, slots=True)
class ShortConvSpec:
    """A short convolution between its two projections, with a gate before it and one behind.

    Source: Liquid AI 2025, arXiv:2511.23404 (LFM2).

    Attributes:
        inner_size: Channels of each gate, of x and of the result.
        conv_width: Tokens that the causal convolution sees, the token itself included; no
            activation follows.
        conv_dtype, block_size, checkpoints: As in `StateSpaceSpec`.
    """

    inner_size: int
    conv_width: int
    dtype: str
    conv_dtype: str
    block_size: int
    checkpoints: str = "none"

    @property
    def conv_size(self) -> int:
        """Channels that the convolution runs over."""
        return self.inner_size

    @property
    def sections(self) -> tuple[int, int, int]:
        """Columns of the input: the gate before, the gate behind, then x."""
        return self.inner_size, self.inner_size, self.inner_size


@dataclass(frozen=True, slots=True)
class GatedDeltaSpec:
    """Linear attention with the gated delta rule, between its projections.

    Sources: Yang et al. 2024, arXiv:2412.06464 (gated delta net); Kimi Team 2025, arXiv:2510.26692
    (Kimi delta attention: decays by channel).

    Attributes:
        num_heads: Heads of v, of the state and of the result.
        num_key_heads: Heads of q and k; each serves num_heads / num_key_heads neighbors.
        key_dim, value_dim: Channels of a head of q and k, and of v.
        conv_width: Tokens that the causal convolution over q, k and v sees, the token itself
            included; SiLU follows.
        conv_dtype, state_dtype, block_size, checkpoints: As in `StateSpaceSpec`.
        norm_eps: Of the RMS norm over each head of the result, in front of the gate.
        decay: What has a decay of its own: each "head", or each "channel" of its keys.
        gate: Activation of the gate: "silu" or "sigmoid".
        beta_scale: Factor on beta behind its sigmoid; with 2 a state may turn its sign along a key.
        decay_floor: Least logarithm of a decay, below 0, which a sigmoid scales; None where a
            softplus makes the logarithm, which has no least value.
    """

    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    dtype: str
    conv_dtype: str
    state_dtype: str
    block_size: int
    norm_eps: float
    checkpoints: str = "none"
    decay: str = "head"
    gate: str = "silu"
    beta_scale: float = 1.0
    decay_floor: float | None = None

    @property
    def inner_size(self) -> int:
        """Channels of v, of the gate z and of the result."""
        return self.num_heads * self.value_dim

    @property
    def conv_size(self) -> int:
        """Channels that the convolution runs over: q, k and v."""
        return 2 * self.num_key_heads * self.key_dim + self.inner_size

    @property
    def num_decays(self) -> int:
        """Decays of a token."""
        return self.num_heads * (self.key_dim if self.decay == "channel" else 1)

    @property
    def sections(self) -> tuple[int, int, int, int]:
        """Columns of the input: q, k and v, then the gate z, then beta, then the decays."""
        return self.conv_size, self.inner_size, self.num_heads, self.num_decays

    @property
    def widths(self) -> dict[str, int]:
        """Columns of each part of the input that belong to one key head."""
        each = self.num_heads // self.num_key_heads
        return {
            "q": self.key_dim,
            "k": self.key_dim,
            "v": each * self.value_dim,
            "z": each * self.value_dim,
            "beta": each,
            "decay": self.num_decays // self.num_key_heads,
        }
