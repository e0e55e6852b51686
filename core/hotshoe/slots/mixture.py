"""Mixtures of experts: their operation, and where experts are, if a rank holds only some of them.

Free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The places of experts on this rank. New values may be written into it between steps.

    An expert may have several places, on several ranks; its tokens take turns. Each token finds
    each of its experts on one rank alone.

    Attributes:
        table: [turns, num_experts] int32. Token t goes by row t % turns: it finds expert e at
            place table[t % turns, e], or on another rank if that is `MoeSpec.held`, the number
            behind the last place.
        counts: [num_experts] int32; every call adds how many tokens chose each expert, on
            whatever rank. None counts nothing.
    """

    table: Tensor
    counts: Tensor | None = None


class MoeOp(Protocol):
    """A mixture of experts with the weights of all of them, or of those that this rank holds.

    Experts come one by one, in any order, and are numbered by their place here. An operation that
    keeps them stacked takes room for all with the first one. Where x has 4-bit floats, it has one
    scale of the whole for all experts here: the largest of their `input_scale`, which is 0 if an
    expert says nothing of it.
    """

    def load_gate_up(self, expert: int, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        """Take an expert's first weight as `LinearOp.load`; gate's rows come before up's."""
        ...

    def load_down(self, expert: int, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        """Take an expert's second weight as `LinearOp.load`."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return what is held as `LinearOp.state` does, under "experts.N.gate_up." and
        "experts.N.down." where expert N lies by itself."""
        ...

    def __call__(
        self,
        x: Tensor,
        logits: Tensor,
        correction: Tensor | None,
        placement: Placement | None = None,
    ) -> Tensor:
        """Choose experts and add up what those of them compute that are here.

        Args:
            x: [num_tokens, gate_up.in_features], model dtype (row stride free).
            logits: [num_tokens, num_experts] float32, the router's.
            correction: [num_experts] float32 where the router has one, else None.
            placement: Where experts are, if the specification has `held`, else None.

        Returns:
            [num_tokens, down.out_features], model dtype, rounded once from float32 sums.
        """
        ...

    def nbytes(self) -> int:
        """Return the bytes that the prepared weights of all experts hold."""
        ...


class ProductChange(Protocol):
    """What is called behind the products of experts: of all at once, or of some at a time.

    Behind the first product of some rows comes the second one, in which tokens and experts of the
    rows are the same.
    """

    def __call__(self, name: str, y: Tensor, x: Tensor, tokens: Tensor, experts: Tensor) -> None:
        """Change what products have made, in place.

        Args:
            name: "gate_up" or "down".
            y: [n, out_features], model dtype, the products of x [n, in_features].
            tokens: [n] integers, whose rows of the call's x these are.
            experts: [n] integers, the place of each row's expert; behind the last place, its rows
                of x and y hold anything.
        """
        ...


@runtime_checkable
class AdaptableMoeOp(MoeOp, Protocol):
    """A mixture whose experts may have adapters: it stops between its products."""

    def adapted(
        self,
        x: Tensor,
        logits: Tensor,
        correction: Tensor | None,
        placement: Placement | None,
        between: ProductChange,
    ) -> Tensor:
        """Compute the mixture, and let `between` change what each product makes."""
        ...


@runtime_checkable
class RecordableMoeOp(AdaptableMoeOp, Protocol):
    """An `AdaptableMoeOp` that recordings hold stopping, too.

    Attributes:
        recordable: `adapted` never waits for the device, whatever tokens chose.
    """

    recordable: bool
