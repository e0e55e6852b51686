"""Attention layer whose scores have logits of relative positions, by slot `relative_attention`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from hotshoe.layers.attention import Attention, QkNorm
from hotshoe.layers.context import BuildContext, ForwardBatch
from hotshoe.layers.temperature import LogTemperature
from hotshoe.layers.weights import Holder, Place
from hotshoe.slots import (
    AttentionSpec,
    CacheView,
    RelativeAttentionOp,
    RelativeAttentionSpec,
    renewed,
)
from hotshoe.types.trees import NoTreesError

SLOT = "relative_attention"


class RelativeAttention(Attention):
    """One layer's attention with logits of relative positions; nothing rotates.

    Args:
        ctx: The build context; the layer registers itself there for a cache.
        spec: This rank's heads, scale and window.
        sizes: Channels of a head's state, and distances that have profiles.
        name: Checkpoint name of the profiles [states, extent], which all heads share.
        qk_norm: The norms of each head's q and k.
        kv_scales: As for `Attention`.
        temperature: Scores grow with the query's position, their logits too; None for not at all.

    Raises:
        NoTreesError: Drafts are trees.
    """

    def __init__(
        self,
        ctx: BuildContext,
        spec: AttentionSpec,
        sizes: tuple[int, int],
        name: str,
        qk_norm: QkNorm,
        kv_scales: tuple[str, str] | None = None,
        temperature: LogTemperature | None = None,
    ) -> None:
        if ctx.tree is not None:
            raise NoTreesError(
                "the model's scores go by distances, which the nodes of a tree have not"
            )
        (states, extent), self._temperature = sizes, temperature
        self._states, self._extent = sizes
        super().__init__(ctx, spec, None, qk_norm, kv_scales=kv_scales)
        # The layer asks it for layout and preparation, which operations of attention have alike.
        self._relative = cast("RelativeAttentionOp", self._attend)
        self.planner = (("relative", self.planner[0]), self._relative.prepare)
        self._profiles = torch.zeros(states, extent, device=ctx.device)
        holder = Holder(SLOT, "profiles", "float32", self._held)
        place = Place(holder, "profiles", (0, states), ())
        ctx.weights.expect(name, (states, extent), self._take_profiles, place=place)
        ctx.weight_bytes.append(lambda: self._profiles.nbytes)

    def question(self, spec: AttentionSpec) -> tuple[str, Any]:
        """Return the slot that serves the layer, and what it is asked for."""
        return SLOT, RelativeAttentionSpec(spec, self._states, self._extent)

    def _held(self) -> dict[str, Tensor]:
        return {"profiles": self._profiles}

    def _take_profiles(self, tensor: Tensor) -> None:
        self._profiles = renewed(self._profiles, tensor.to(self._profiles, copy=True))

    def attend(self, qkv: Tensor, states: Tensor, batch: ForwardBatch) -> Tensor:
        """Write the step's keys and values, and attend.

        Args:
            qkv: [num_tokens, all channels of q, k and v], overwritten.
            states: [num_tokens, num_heads * states].
            batch: The step.

        Returns:
            [num_tokens, num_heads * value_dim].
        """
        slots = batch.views[self.view].slot_mapping
        q = self._write(qkv, batch.positions, None, self.cache, slots, self._qk_norm)
        asked = torch.cat((q, states.reshape(*q.shape[:2], self._states)), -1)
        if self._temperature is not None:
            asked *= self._temperature.of(batch.positions)[..., None]
        if batch.between is not None:
            return batch.between(asked, self._read, q.shape[1] * self.spec.value_dim)
        return self._read(asked, batch.views)

    def _read(self, q: Tensor, views: Sequence[CacheView]) -> Tensor:
        prepared: Any = views[self.view].prepared
        return self._relative(q, self.cache, prepared, self._profiles)
