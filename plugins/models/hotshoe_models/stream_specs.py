"""Residual streams, and second inputs of layers, as data; see `hotshoe_models.spec`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperSpec:
    """Several residual streams that every block mixes; see `hotshoe_models.hyper`.

    Attributes:
        count: How many there are.
        iterations: Of the mixing matrix's columns and rows, each normalized so often in turn.
        eps: Added to sums that are divided by, and to factors.
        mixes, magnitude: As in `hotshoe.slots.HyperConnectionSpec`.
        mean: Behind the last block they are averaged; else weights say how they are added.
    """

    count: int
    iterations: int
    eps: float
    mean: bool = False
    mixes: bool = True
    magnitude: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerSpec:
    """A second embedding, of which each layer gets a part; see `hotshoe_models.per_layer`.

    Attributes:
        size, rows: Channels for each layer; rows of the table, ids behind which read row 0.
        scale: Factor on its rows.
    """

    size: int
    rows: int
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """Several residual streams (AltUp), of which a layer computes with one.

    Attributes:
        count, active: How many there are, and the one that layers compute with.
        scaled: A layer's result is scaled channel by channel before it gets the per-layer input.
        laurel_rank: Channels between the two matrices beside attention.
    """

    count: int
    active: int
    scaled: bool
    laurel_rank: int
