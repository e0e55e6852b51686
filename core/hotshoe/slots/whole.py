"""Call signatures of operations that compute a whole layer, or all layers of a stage.

They hold their weights, as `LinearOp` and `GatedMlpOp` do, and serve steps of any size: one token
of each request, drafts behind it, prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from hotshoe.slots.specs import KVLayout
from hotshoe.slots.step import CacheView, StepShape

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class LayerContext:
    """What a layer gets beside its weights.

    Attributes:
        cos_sin: [max_position, rotary_dim] float32, cosines then sines; None without rotation.
        add_up: Adds up tensors of all ranks: into the first, of the second, which may be the same;
            None for one rank.
        adapted: By matrix, what adds to its y, in place, what adapters make of x: `(y, x)`. Empty
            where there are none. It follows the product, and precedes `add_up`.
    """

    cos_sin: Tensor | None = None
    add_up: Callable[[Tensor, Tensor], Tensor] | None = None
    adapted: Mapping[str, Callable[[Tensor, Tensor], None]] = field(default_factory=dict)


class WholeLayer(Protocol):
    """The weights of one layer, and how its cache lies."""

    layout: KVLayout

    def load(self, part: str, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        """Take a part's weights, which may be called again with new values.

        Args:
            part: "qkv", "o", "gate_up" or "down", as `LinearOp.load` takes them; or "input_norm",
                "mlp_norm", "q_norm", "k_norm" or "sinks", whose one tensor is called "weight".
            tensors: By kind. Gate's rows come before up's; sinks are float32 [num_heads].
        """
        ...

    def bind(self, context: LayerContext) -> None:
        """Take what the layer needs beside weights, once and before the first step."""
        ...

    def prepare(self, shape: StepShape, view: CacheView) -> Any:
        """Plan a step as `AttentionOp.prepare`, once for all layers of one specification."""
        ...

    def product(self, part: str, x: Tensor) -> Tensor:
        """Return a matrix's product with x, as `LinearOp`; called for adapters alone."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return what is held, as `LinearOp.state`, under "qkv." and so on; empty before `load`."""
        ...

    def nbytes(self) -> int:
        """Return the bytes that all of the weights hold."""
        ...


class DecoderLayerOp(WholeLayer, Protocol):
    """One decoder layer."""

    def __call__(
        self, x: Tensor, cache: Tensor, positions: Tensor, slot_mapping: Tensor, prepared: Any
    ) -> Tensor:
        """Write the keys and values of every token, and compute the layer.

        Args:
            x: [num_tokens, hidden_size], left as it is.
            cache: The layer's own, as `AttentionOp` has it.
            positions, slot_mapping: [num_tokens] int32.
            prepared: What `prepare` returned for the step.

        Returns:
            [num_tokens, hidden_size], a new tensor.
        """
        ...


class ModelStepOp(Protocol):
    """All layers of a stage. Each entry of `layers` takes the weights of one."""

    layers: Sequence[WholeLayer]

    def __call__(
        self,
        x: Tensor,
        caches: Sequence[Tensor],
        positions: Tensor,
        views: Sequence[CacheView],
    ) -> Tensor:
        """Compute all layers as `DecoderLayerOp` does one.

        Args:
            x, positions: As there.
            caches: One for each layer.
            views: For each layer its own, with what `prepare` returned.
        """
        ...
