"""A model whose vectors go through matrices that lie beside it, in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext
from hotshoe.loader.sources import source_of
from hotshoe.models import ModelConfig
from hotshoe.models.base import EMBED, TOKEN_EMBED, Model, ModelBuilder
from hotshoe.models.modules import LINEAR, Dense, Projection, read_projection
from hotshoe.types.late import LateInteraction

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": functional.relu,
    "GELU": functional.gelu,
}


class Projected:
    """A model, and what makes its vectors. All else is the model's own.

    Args:
        model: Built.
        projection: The matrices; they are read at once, as they are small.
        device: Where they are kept.
        random: They are not read, but drawn.
    """

    def __init__(self, model: Model, projection: Projection, device: str, random: bool) -> None:
        self._model = model
        self._task = TOKEN_EMBED if projection.by_token else EMBED
        self._layers: list[tuple[Tensor, Tensor | None, Callable[[Tensor], Tensor]]] = []
        for one in projection.layers:
            weight, bias = _drawn(one) if random else _read(one)
            bias = None if bias is None else bias.to(device)
            self._layers.append((weight.to(device), bias, ACTIVATIONS[one.activation]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def nbytes(self) -> int:
        """Return the bytes of the matrices."""
        return sum(weight.nbytes for weight, _, _ in self._layers)

    def head(self, hidden: Tensor, task: str) -> Tensor:
        """See `hotshoe.models.base.Model`."""
        found = self._model.head(hidden, task)
        if task == self._task:
            for weight, bias, activation in self._layers:
                found = activation(functional.linear(found, weight, bias))
        return found


def with_projection(
    builder: ModelBuilder, random: bool, late: LateInteraction | None = None
) -> ModelBuilder:
    """Return what builds a model and the matrices beside it, if there are any.

    Args:
        builder: Of the model.
        random: Weights are not read, but drawn.
        late: See `BuildContext`.

    Raises:
        CheckpointError: By what is returned: they are malformed, or do not fit the model.
    """

    def build(config: ModelConfig, ctx: BuildContext) -> Model:
        ctx.late = late
        model, projection = builder(config, ctx), read_projection(config)
        if projection is None or not ctx.stage.is_last:
            return model
        first = projection.layers[0]
        if first.in_features != model.hidden_size:
            raise CheckpointError(
                f"{first.folder}: in_features is {first.in_features}, but the model's states have "
                f"{model.hidden_size} entries"
            )
        made = Projected(model, projection, ctx.device, random)
        ctx.weight_bytes.append(made.nbytes)
        return cast(Model, made)

    return build


def _read(one: Dense) -> tuple[Tensor, Tensor | None]:
    source = source_of(one.folder)
    names = [f"{LINEAR}.weight", *([f"{LINEAR}.bias"] if one.bias else [])]
    missing = sorted({*names} - {*source.names()})
    if missing:
        raise CheckpointError(f"{one.folder} has no {' and '.join(missing)}")
    weight, *bias = (source.tensor(name).float() for name in names)
    if tuple(weight.shape) != (one.out_features, one.in_features):
        raise CheckpointError(
            f"{one.folder}: {names[0]} has shape {list(weight.shape)}, not "
            f"{[one.out_features, one.in_features]}"
        )
    return weight, bias[0] if bias else None


def _drawn(one: Dense) -> tuple[Tensor, Tensor | None]:
    weight = torch.randn(one.out_features, one.in_features) * one.in_features**-0.5
    return weight, torch.zeros(one.out_features) if one.bias else None
