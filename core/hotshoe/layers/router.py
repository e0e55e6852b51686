"""The router of a mixture of experts: logits, and what moves the choice among experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from hotshoe.errors import CheckpointError
from hotshoe.layers.context import BuildContext
from hotshoe.layers.scores import Scores
from hotshoe.layers.weights import Holder, Place
from hotshoe.slots import renewed

if TYPE_CHECKING:
    from hotshoe.layers.moe import Mixture

#: Far above all scores, so that experts are always chosen.
CHOSEN = float(1 << 20)
#: Types of tables of experts.
INTEGERS = frozenset({torch.int64, torch.int32})


class Router:
    """Logits of all experts in float32, and what moves the choice among them.

    Where tokens have their own experts, or choose by corrected logits, the logits of all others are
    -inf: whoever chooses the largest scores chooses these, since every scoring that goes with a
    table or with such a correction makes 0 of -inf.
    """

    def __init__(self, ctx: BuildContext, prefix: str, mixture: Mixture) -> None:
        count, names = mixture.num_experts, mixture.names
        sizes = (count, mixture.hidden_size)
        self._scores = Scores(ctx, prefix + names.router, *sizes, mixture.router_bias)
        self._device, self._count = ctx.device, count
        self._always = mixture.always
        assert not mixture.always or mixture.router.correction
        self._chosen = mixture.top_k if mixture.logit_correction else 0
        assert not self._chosen or mixture.router.scoring == "sigmoid"
        self._correction: Tensor | None = None
        self._table: Tensor | None = None
        holder = Holder("moe", "router", "float32", self.state)
        if mixture.router.correction or mixture.logit_correction:
            moved = count - mixture.always
            place = Place(holder, "correction", (0, moved), ())
            shape = mixture.correction_shape or (moved,)
            ctx.weights.expect(prefix + names.correction, shape, self._take, place=place)
            self._correction = torch.zeros(count, device=ctx.device)  # where it may be absent
        if mixture.table_size:
            self._name, size = prefix + names.table, (mixture.table_size, mixture.top_k)
            place = Place(holder, "table", (0, mixture.table_size), ())
            ctx.weights.expect(self._name, size, self._take_table, INTEGERS, place)

    def _take(self, tensor: Tensor) -> None:
        flat = tensor.flatten().to(self._device, torch.float32, copy=True)
        flat = functional.pad(flat, (0, self._always), value=CHOSEN)
        self._correction = renewed(self._correction, flat)

    def _take_table(self, tensor: Tensor) -> None:
        """Keep the experts of every token.

        Raises:
            CheckpointError: It names an expert that there is not, or one twice for a token.
        """
        ordered = tensor.sort(-1).values
        if not ((ordered >= 0) & (ordered < self._count)).all():
            raise CheckpointError(f"{self._name} names others than the {self._count} experts")
        if (ordered[:, 1:] == ordered[:, :-1]).any():
            raise CheckpointError(
                f"{self._name} names an expert twice for a token, which is not served; "
                "fetch the checkpoint again"
            )
        self._table = renewed(self._table, tensor.to(self._device, torch.int64, copy=True))

    def state(self) -> dict[str, Tensor]:
        """Return the correction [num_experts], or the table [table_size, top_k]."""
        held = {"correction": self._correction, "table": self._table}
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    def __call__(self, x: Tensor, ids: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return logits [num_tokens, num_experts] float32, and the correction.

        Args:
            x: [num_tokens, hidden_size].
            ids: [num_tokens] int64 where the mixture has a table.
        """
        logits = self._scores(x)
        if self._table is not None:
            assert ids is not None
            return _only(logits, self._table[ids]), self._correction
        if self._chosen:
            assert self._correction is not None
            chosen = (logits + self._correction).topk(self._chosen, -1).indices
            return _only(logits, chosen), None
        return logits, self._correction


def _only(logits: Tensor, own: Tensor) -> Tensor:
    """Return the logits of each token's own experts [num_tokens, top_k], -inf for others."""
    masked = torch.full_like(logits, -torch.inf)
    return masked.scatter_(1, own, logits.gather(1, own))
