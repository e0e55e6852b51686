"""What layers need while a model is built: the selector, the types, the weight table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from hotshoe.errors import ConfigError, SelectionError
from hotshoe.layers.adapters import AdapterTable
from hotshoe.layers.cache import CacheLayer
from hotshoe.layers.experts import Share
from hotshoe.layers.formats import PLAIN, WeightFormat
from hotshoe.layers.offload import Offload
from hotshoe.layers.split import Section, Split, split_sections
from hotshoe.layers.weights import Holder, Place, WeightTable
from hotshoe.slots import (
    AddNormSpec,
    AttentionSpec,
    CacheView,
    CommunicatorOp,
    GatedActivationSpec,
    NormSpec,
    QuantSpec,
    Selector,
    StepShape,
)
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.types.cache import Checkpoints
from hotshoe.types.late import LateInteraction
from hotshoe.types.mesh import Axis, cut
from hotshoe.types.trees import DraftTree

Producer = TypeVar("Producer", NormSpec, AddNormSpec, GatedActivationSpec)
#: One layer's attention over its cache: maps q and a step's views to what `AttentionOp` returns.
Attend: TypeAlias = Callable[[Tensor, Sequence[CacheView]], Tensor]


class BetweenPieces(Protocol):
    """Attends between two pieces of a recorded step, for the step that runs then."""

    def __call__(self, q: Tensor, attend: Attend, width: int | None = None) -> Tensor:
        """Return [len(q), width] as `attend` fills it; the width is that of q if it is None.

        The next call may overwrite the result, and any call may overwrite the q of another.
        """
        ...


@dataclass(slots=True)
class ForwardBatch:
    """One step in device form. Persistent buffers, written by the runner, read by the model.

    Attributes:
        positions: [num_tokens] int32.
        shape: The step's lengths.
        views: What layers with a cache read; each knows the number of its own.
        outputs_at: [s] int64, the tokens whose hidden states are wanted; None for all. Every
            token is computed as far as the KV cache needs it.
        between: In a step that is recorded in pieces, attends between two of them: for the step
            that runs then, whatever its shape. None in every other step.
    """

    positions: Tensor
    shape: StepShape
    views: Sequence[CacheView]
    outputs_at: Tensor | None = None
    between: BetweenPieces | None = None


@dataclass(slots=True)
class BuildContext:
    """Everything that a model's builder asks for, and the lists that its layers fill.

    Attributes:
        selector: Chooses operations. `dtype` and `kv_dtype` name the types of model and KV cache.
        format: How the checkpoint stores matrices.
        rank, size: Of tensor parallelism; with one rank `communicator` is None.
        experts: The place among the ranks that hold whole experts. `mixtures` collects this rank's
            experts of each layer; `redundant_experts` counts further places, None for fixed ones.
        stage: The place among pipeline stages; `stage_layers` has the user's numbers of layers.
        own_layers: Layers of this stage, after `take_layers`.
        checkpoints: The states of sequences that the cache keeps, as in `CacheSpec`, in
            `conv_state_dtype` and `state_dtype`; `drafts`: most drafts that a state may lag behind.
        tree: The shape of drafts that are trees; None for chains.
        adapters: None if the engine takes no adapters.
        further: Most layers that predict further tokens to build (`DraftingModel`).
        late: How a model of late interaction reads texts; None for other models.
        offload: Keeps weights in host memory; None for all weights on the device.
        judged_together: Matrices stay packed: the layer asks for several at once.
        weights: The weights that layers ask for; `beside` has those of other directories.
        cache_layers: Layers with a cache, in order. `weight_bytes` returns each layer's bytes.
        waits: What of the model's own code waits for the device, so that no step is recorded.
    """

    selector: Selector
    dtype: str
    kv_dtype: str
    block_size: int
    max_model_len: int
    format: WeightFormat = PLAIN
    rank: int = 0
    size: int = 1
    communicator: CommunicatorOp | None = None
    experts: Axis = field(default_factory=Axis)
    redundant_experts: int | None = None
    stage: Axis = field(default_factory=Axis)
    stage_layers: tuple[int, ...] = ()
    own_layers: range | None = None
    checkpoints: Checkpoints = "none"
    conv_state_dtype: str | None = None
    state_dtype: str = "float32"
    drafts: int = 0
    tree: DraftTree | None = None
    adapters: AdapterTable | None = None
    further: int = 0
    late: LateInteraction | None = None
    offload: Offload | None = None
    judged_together: bool = False
    weights: WeightTable = field(default_factory=WeightTable)
    beside: list[tuple[WeightTable, Path]] = field(default_factory=list)
    cache_layers: list[CacheLayer] = field(default_factory=list)
    weight_bytes: list[Callable[[], int]] = field(default_factory=list)
    mixtures: list[Share] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)

    @property
    def device(self) -> str:
        """The device for tensors, as PyTorch names it."""
        return self.selector.facts.device

    @property
    def torch_dtype(self) -> torch.dtype:
        """The model's element type."""
        return torch_dtype(self.dtype)

    def kv_scales(self, names: tuple[str, str] | None) -> str:
        """Return how an attention layer's keys and values are scaled, as in `AttentionSpec`.

        Args:
            names: Of their scales, if the checkpoint has them.
        """
        if self.kv_dtype not in ("int8", "float8_e4m3fn"):
            return "none"  # nor for e5m2, whose range is that of float16
        return "tensor" if names is not None and self.kv_dtype == "float8_e4m3fn" else "token"

    def attention_spec(
        self, num_heads: int, num_kv_heads: int, head_dim: int, scale: float
    ) -> AttentionSpec:
        """Start an attention specification with this engine's types and block size.

        Heads are the model's; the specification has this rank's share of them.

        Raises:
            ConfigError: The heads cannot be divided among the ranks.
        """
        heads, kv_heads = Section(num_heads), Section(num_kv_heads, shared=True)
        share, kv_share = (self.split("attention heads", s).size for s in (heads, kv_heads))
        return AttentionSpec(
            share, kv_share, head_dim, self.dtype, self.kv_dtype, self.block_size, scale
        )

    def fused(self, slot: str, spec: Producer, quant: QuantSpec | None) -> Producer:
        """Let an operation quantize its own result where some candidate does both at once.

        Args:
            slot: The operation's slot.
            spec: What is asked for anyway.
            quant: What the layer behind takes; None for a plain result.
        """
        wanted = replace(spec, quant=quant)
        return wanted if quant is not None and self.selector.offers(slot, wanted) else spec

    def operation(self, slot: str, spec: Any, names: Sequence[str]) -> Any:
        """Choose an operation whose weights may stay in host memory.

        Args:
            slot, spec: The question.
            names: Checkpoint tensors that the operation will hold.

        Returns:
            The operation, to be loaded and called; None for a block to be composed.

        Raises:
            SelectionError: Nobody serves it; the message begins with the first name.
        """
        try:
            operation = self.selector.choose(slot, spec)
        except SelectionError as error:
            raise SelectionError(f"{names[0]}: {error}" if names else str(error)) from error
        if self.offload is None:
            return operation
        return self.offload.take(self.selector, slot, spec, names, operation)

    def holder(self, slot: str, spec: Any, form: str, operation: object) -> Holder:
        """Describe the operation that holds weights, for `WeightTable.expect`.

        Args:
            slot, spec: The question that the operation answers.
            form: How the operation keeps numbers, in words.
            operation: Its method `state`, if it has one, returns the tensors.
        """
        decision = self.selector.decisions[slot, spec]
        return Holder(slot, decision.chosen, form, getattr(operation, "state", None))

    def expect_alone(
        self, holder: Holder, name: str, size: int, sink: Callable[[Tensor], None], part: str
    ) -> None:
        """Ask for a tensor [size] that its holder takes alone, such as a norm's weight."""
        place = Place(holder, part, (0, size), ())
        self.weights.expect(name, (size,), sink, place=place)

    def settle(self) -> None:
        """Tell host copies and adapters about weights that replaced older ones."""
        if self.offload is not None:
            self.offload.settle()
        if self.adapters is not None:
            self.adapters.settle()

    def take_layers(self, count: int) -> range:
        """Return which of the model's layers this stage builds; the others have theirs.

        A builder that calls this has `embed` work in the first stage, `head` in the last, and
        `forward` hand the residual on between them, [num_tokens, hidden_size] each time. It
        declares the weights of other stages with `weights.elsewhere`.

        Raises:
            ConfigError: The layers cannot be divided so.
        """
        try:
            self.own_layers = cut(count, self.stage.size, self.stage_layers)[self.stage.rank]
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return self.own_layers

    def split(self, what: str, *sections: Section) -> Split:
        """Return this rank's part of a dimension; `what` names the units in messages.

        Raises:
            ConfigError: A section cannot be divided among the ranks.
        """
        return split_sections(what, sections, self.rank, self.size)
