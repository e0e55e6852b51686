"""Call signatures of the slots' operations. A candidate's `build` returns such an object.

Tensors lie on the device, contiguous where no stride is said to be free; `num_tokens` is the step's
total over all requests. Operations neither synchronize with the host nor allocate more than their
outputs. Outputs may alias where said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from hotshoe.slots.rendezvous import Rendezvous
from hotshoe.slots.specs import KVLayout

if TYPE_CHECKING:
    from torch import Tensor

    from hotshoe.slots.step import CacheView, StepShape

#: Quantized activations: values [num_tokens, size], and float32 scales [num_tokens], or
#: [num_tokens, groups] of any strides. What holds NaN has NaN for its scale, as no integer is NaN.
Quantized: TypeAlias = "tuple[Tensor, Tensor]"
#: Ends a piece of a recording, has the host call the argument there, and begins the next piece.
Between: TypeAlias = Callable[[Callable[[], None]], None]


class AttentionOp(Protocol):
    """Paged attention. `layout` is what its kernels read; the cache writer must produce it.

    A cache of an 8-bit type is bytes: [2, num_blocks, block_bytes] uint8. A block's numbers lie in
    the layout. With kv_scales "token", scales [num_kv_heads, block_size] float32 follow them; what
    was stored is a number times its scale. With "tensor", reader and writer are `ScaledOp`s.
    """

    layout: KVLayout

    def prepare(self, shape: StepShape, view: CacheView) -> Any:
        """Plan a step, once for all layers of a group that ask the same.

        In a step that is recorded (`host_lens` is None), this is recorded too: it then works on
        the device alone, and on tensors whose content may be another at each repetition.

        Returns:
            What `__call__` takes as `prepared`; `whole_step` where nothing is planned.
        """
        ...

    def __call__(self, q: Tensor, cache: Tensor, prepared: Any, sinks: Tensor | None) -> Tensor:
        """Attend.

        Args:
            q: [num_tokens, num_heads, head_dim], model dtype; heads contiguous, token stride free.
            cache: [2, num_blocks, block_numel], kv dtype; this step's k and v already written.
            prepared: What `prepare` returned for this step.
            sinks: [num_heads] float32, or None.

        Returns:
            [num_tokens, num_heads * head_dim], model dtype, contiguous.
        """
        ...


class ScaledOp(Protocol):
    """A reader or writer of a cache with kv_scales "tensor".

    Attributes:
        kv_scales: [2] float32 on the device, of keys and of values. The layer sets it when the
            operation is built; what it holds may change between steps.
    """

    kv_scales: Tensor | None


class RotaryAndCacheOp(Protocol):
    """Norm, rotate, and write k and v into the cache; one writer per block."""

    def __call__(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        cache: Tensor,
        slot_mapping: Tensor,
        qk_norm: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        """Prepare one layer's attention inputs.

        Args:
            qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], model dtype; overwritten.
            positions: [num_tokens] int32.
            cos_sin: [max_position, rotary_dim] float32, cosines then sines; None without rotation.
            cache: [2, num_blocks, block_numel], written at slot_mapping.
            slot_mapping: [num_tokens] int32.
            qk_norm: The norm weights of q and k, each [head_dim], or None.

        Returns:
            q: [num_tokens, num_heads, head_dim]; may be a view into qkv.
        """
        ...


class LinearOp(Protocol):
    """A matrix product whose weight is prepared once, in whatever layout the kernel likes.

    An operation that takes activations quantized by the operation before it says so by an
    attribute `takes_quantized = True`. One without `state` works, but its weight can be neither
    replaced in place nor moved to host memory.
    """

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        """Take the weight in checkpoint form; inputs may be dropped afterwards.

        Args:
            tensors: "weight": row parts [n_i, in_features] in order, their n_i adding up to
                out_features; "bias": parts [n_i] when the specification has a bias; quantized
                checkpoints add "weight_scale", "weight_zero_point" likewise, and numbers [] or [1]
                for each part: "input_scale" where x has a stored one, "weight_global_scale" beside
                it for 4-bit floats in groups of 16.

        Called again, it overwrites what it holds where that lies, so that recordings read the new
        values; `renewed` does so.
        """
        ...

    def state(self) -> dict[str, Tensor]:
        """Return what is held, by name, as it lies in memory: "weight" where rows are readable,
        "packed" in a layout of its own, "weight_scale", "bias". Empty before `load`."""
        ...

    def __call__(self, x: Tensor | Quantized) -> Tensor:
        """Return [num_tokens, out_features] for x [num_tokens, in_features] (row stride free)."""
        ...

    def nbytes(self) -> int:
        """Return the bytes that the prepared weight holds."""
        ...


class GatedMlpOp(Protocol):
    """A whole MLP block with both of its weights; may say `takes_quantized` as `LinearOp`."""

    def load_gate_up(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        """Take the first weight as `LinearOp.load`; gate's rows come before up's."""
        ...

    def load_down(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        """Take the second weight as `LinearOp.load`."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return what is held as `LinearOp.state` does, under "gate_up." and "down."."""
        ...

    def __call__(self, x: Tensor | Quantized) -> Tensor:
        """Return [num_tokens, down.out_features]; x as `LinearOp` takes it, of gate_up's size."""
        ...

    def nbytes(self) -> int:
        """Return the bytes that both prepared weights hold."""
        ...


class NormOp(Protocol):
    """RMS norm."""

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor | Quantized:
        """Normalize x [num_tokens, hidden_size] into a new tensor; float32 inside."""
        ...


class AddNormOp(Protocol):
    """Residual addition and RMS norm."""

    def __call__(
        self, x: Tensor, residual: Tensor, weight: Tensor
    ) -> tuple[Tensor | Quantized, Tensor]:
        """Return (normed, new residual); the new residual may overwrite the old one."""
        ...


class LayerNormOp(Protocol):
    """Layer norm."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Normalize x [num_tokens, hidden_size] into a new tensor; float32 inside.

        The bias is None exactly where the specification has none.
        """
        ...


class GatedActivationOp(Protocol):
    """Gated activation."""

    def __call__(self, x: Tensor) -> Tensor | Quantized:
        """Map [num_tokens, 2 * size] to a new [num_tokens, size]."""
        ...


class EmbeddingOp(Protocol):
    """Embedding gather."""

    def __call__(self, ids: Tensor, table: Tensor) -> Tensor:
        """Return [num_tokens, size] for ids [num_tokens] int32; ids are in range."""
        ...


class LoraTokens(NamedTuple):
    """Which adapter each token of a step has, by the adapter's place on the device.

    Attributes:
        places: [num_tokens] int32; below 0 for no adapter.
        order: [num_tokens] int32, tokens by place; those without an adapter come last. Empty, as is
            `starts`, with `LoraSpec.late`.
        starts: [max_adapters + 1] int32, where in `order` tokens of each place begin, or of none.
        used: The places that occur, each once, on the host; all of them in a recording.
        ranks: [max_adapters, parts] int32 on the host, read anew in recordings: how many rows of
            each part are used, the first ones; others are zero. None tells nothing.
    """

    places: Tensor
    order: Tensor
    starts: Tensor
    used: Sequence[int]
    ranks: Tensor | None = None


class LoraOp(Protocol):
    """What low-rank adapters add to a matrix product.

    Source: Low-rank adaptation, arXiv:2106.09685.
    """

    def __call__(self, y: Tensor, x: Tensor, a: Tensor, b: Tensor, tokens: LoraTokens) -> None:
        """Add b[p]^T (a[p] x) to each row of y, in place.

        Args:
            y: [num_tokens, out_features].
            x: [num_tokens, in_features].
            a: [max_adapters, rank, in_features].
            b: [max_adapters, rank, out_features], scaled.
            tokens: The p of each; one without adds nothing.
        """
        ...


class SampleOp(Protocol):
    """Batched token choice from one uniform number per row."""

    def __call__(
        self,
        logits: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        uniform: Tensor,
    ) -> Tensor:
        """Choose tokens.

        Args:
            logits: [n, vocab_size] float32, not modified.
            temperature: [n] float32; 0 takes the most likely token, the lowest id on ties.
            top_k: [n] int32; 0 keeps all. Ties with the k-th value are kept.
            top_p: [n] float32 in (0, 1], over what top-k kept; ties at the boundary are kept.
            min_p: [n] float32, relative to the largest probability.
            uniform: [n] float64 in [0, 1); the inverse CDF in index order takes it.

        Returns:
            [n] int64; -1 where the row holds NaN or no finite maximum.
        """
        ...


@runtime_checkable
class RecordableSampleOp(SampleOp, Protocol):
    """A `SampleOp` that recordings of decode steps hold, as it never waits for the device.

    It then computes n rows of some earlier step as well, whose tokens nobody reads.

    Attributes:
        recordable: True.
    """

    recordable: bool


class TransferOp(Protocol):
    """Copies between host and device in the order of the device's work, without waiting for it."""

    def host_buffer(self, nbytes: int) -> Tensor:
        """Return [nbytes] uint8 host memory from which uploads are fast."""
        ...

    def upload(self, source: Tensor, target: Tensor) -> None:
        """Copy a host buffer's part into device memory of the same size.

        The source may be rewritten once a download that was started later has arrived.
        """
        ...

    def download(self, tensors: Sequence[Tensor]) -> Callable[[], Sequence[Tensor]]:
        """Start copying to the host; the function returned waits and gives the copies."""
        ...

    def fetch(self, copies: Sequence[tuple[Tensor, Tensor]]) -> Callable[[], None]:
        """Start copying pairs of host and device memory beside the device's work.

        Called where `TransferSpec.fetches` was asked for; both calls may be recorded, together.

        Args:
            copies: Part of a host buffer, and what it is copied to, of the same shape, type and
                strides. Copies begin behind all work that was submitted before, and work that was
                submitted since may run at the same time.

        Returns:
            A function that lets work which is submitted after it find the copies. It never waits.
        """
        ...


class ReservedMemory(Protocol):
    """Device memory whose addresses outlast what lies there: they stay while it is given back.

    Attributes:
        tensors: One of uint8 for each size that was asked for, each a storage of its own, which
            begins where any type may. Memory and addresses go when the last of them has died.
    """

    tensors: Sequence[Tensor]

    def give_back(self) -> None:
        """Wait for the device's work and give the memory to other programs, if it is there.

        Until `take` nobody may read or write the tensors, nor repeat recordings that do.
        """
        ...

    def take(self) -> None:
        """Take memory at the same addresses, if it is not there. What lies there is not defined.

        Raises:
            torch.OutOfMemoryError: There is too little; nothing was taken.
        """
        ...


@runtime_checkable
class ReservingTransferOp(TransferOp, Protocol):
    """A `TransferOp` beside whose copies recordings stay valid, as addresses do."""

    def reserve(self, sizes: Sequence[int]) -> ReservedMemory:
        """Take memory of so many bytes each, at addresses that stay.

        Raises:
            torch.OutOfMemoryError: There is too little.
        """
        ...


class GraphOp(Protocol):
    """Records work on the device once, so that it can be repeated with one launch."""

    def record(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Run `function` as often as needed, now or later, and return what repeats its device work.

        Its inputs are tensors whose addresses stay; every repetition reads their content then, and
        returns the same output tensor, valid until the next repetition of any recording.
        """
        ...

    def record_pieces(self, function: Callable[[Between], Tensor]) -> Callable[[], Tensor]:
        """Do the same with `function(between)`; needed where `GraphSpec.pieces` is accepted.

        A repetition makes each call that `between` got, at its place: its work, of another shape
        each time, comes after the piece before and ahead of the next. Calls share with pieces only
        tensors that were made outside; they may also be made while `function` runs, but are no part
        of what is recorded.
        """
        ...


@runtime_checkable
class SizedGraphOp(Protocol):
    """A `GraphOp` that knows which decode steps are worth recording.

    Attributes:
        sizes: Their numbers of requests, ascending. Core records these instead of its own, up to
            `max_num_seqs`.
    """

    sizes: Sequence[int]


@runtime_checkable
class RestingGraphOp(Protocol):
    """A `GraphOp` that outlasts the sleep of its engine; another one is built anew behind it."""

    def rest(self) -> None:
        """Forget all recordings and their memory; the same steps may come again, in any order."""
        ...


class PendingTransfer(Protocol):
    """A `send` or `recv` under way."""

    def wait(self) -> None:
        """Return once the tensor may be used again: it was handed over, or it has come."""
        ...


class CommunicatorOp(Protocol):
    """Exchange of tensors among ranks. Tensors are contiguous and lie on the rank's own device.

    All ranks call the same collectives in the same order; every collective then sees the same on
    all, and sums are equal on all ranks to the last bit. Pieces join along the first dimension in
    the order of ranks; with `sizes`, which all ranks know, piece r has sizes[r] rows, which may be
    0. Without `out` the result is a new tensor. Work goes down the device's current order of work;
    where a device can record its work, collectives can be recorded.

    Collectives and `wait` raise EngineError when another rank has gone or stays away too long; on a
    device that runs behind, its own error may come first and end the process. Rows that do not
    divide among the ranks, without sizes, are a ValueError.
    """

    rank: int
    size: int

    def open(self, rendezvous: Rendezvous) -> None:
        """Meet the other ranks. Called once, before anything else."""
        ...

    def all_reduce(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the sum over all ranks; `out` may be x."""
        ...

    def all_gather(
        self, x: Tensor, sizes: Sequence[int] | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Join every rank's x [sizes[rank], ...]."""
        ...

    def reduce_scatter(
        self, x: Tensor, sizes: Sequence[int] | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Return this rank's piece of the sum of every rank's x [sum(sizes), ...]."""
        ...

    def all_to_all(
        self,
        x: Tensor,
        send_sizes: Sequence[int] | None = None,
        recv_sizes: Sequence[int] | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Send piece r of x to rank r and join what came; here each rank knows its own sizes."""
        ...

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        """Overwrite x with that of rank `source`, and return it."""
        ...

    def send(self, x: Tensor, to: int) -> PendingTransfer:
        """Send x, which must not change until `wait`. Order holds between any two ranks.

        It starts with the next `wait` or collective of this rank at the latest, so that ranks
        which all send before they receive do not block each other.
        """
        ...

    def recv(self, out: Tensor, source: int) -> PendingTransfer:
        """Receive a tensor of out's shape and type; see `send`."""
        ...

    def close(self) -> None:
        """Leave the group; whoever still waits for this rank gets an EngineError."""
        ...


@runtime_checkable
class RehearsedCommunicatorOp(Protocol):
    """A `CommunicatorOp` with kernels that have to be compiled; see `Rehearsing`."""

    def rehearse(self, x: Tensor) -> None:
        """Call what would add up x, so that it is compiled, and launch nothing."""
        ...


def renewed(held: Tensor | None, fresh: Tensor) -> Tensor:
    """Return the held tensor with fresh values written where it lies; the fresh one at first.

    Raises:
        ValueError: Shapes or types differ.
    """
    if held is None or not held.numel():
        return fresh
    if (held.shape, held.dtype) != (fresh.shape, fresh.dtype):
        raise ValueError(f"{fresh.dtype} {fresh.shape} cannot replace {held.dtype} {held.shape}")
    return held.copy_(fresh)
