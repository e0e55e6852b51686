"""Encoders with a head for classes, of texts or of tokens: rerankers, sentiments, names in texts.

A head is a matrix with an activation, perhaps a norm, and a matrix with a row for each class; that
of tokens often has the last one alone. It is computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from hotshoe.layers import BuildContext
from hotshoe.lazy import resolve_lazy
from hotshoe.models import ModelConfig
from hotshoe.models.base import CLASSIFY, TOKEN_CLASSIFY
from hotshoe.models.pooling import read_classifier
from hotshoe.slots import renewed
from hotshoe.types.pooling import PoolingKind
from hotshoe_models.encoder import Encoder
from hotshoe_models.plugin import ARCHITECTURES, ENCODER_CLASSIFIERS, TOKEN_CLASSIFIERS
from hotshoe_models.values import refuse

Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": functional.gelu,
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True, slots=True)
class HeadNames:
    """Names of a head's weights.

    Attributes:
        dense: The first matrix.
        out: The one with a row for each class.
        activation: Behind the first.
        norm: Behind that; None for none.
    """

    dense: str
    out: str
    activation: str
    norm: str | None = None


#: By the model that has no head; others are as BERT's.
NAMES = {
    "BertModel": HeadNames("pooler.dense", "classifier", "tanh"),
    "DebertaV2Model": HeadNames("pooler.dense", "classifier", "gelu"),
    "DistilBertModel": HeadNames("pre_classifier", "classifier", "relu"),
    "ElectraModel": HeadNames("classifier.dense", "classifier.out_proj", "gelu"),
    "ModernBertModel": HeadNames("head.dense", "classifier", "gelu", "head.norm"),
    "RobertaModel": HeadNames("classifier.dense", "classifier.out_proj", "tanh"),
}
AS_ROBERTA = (
    *("CamembertModel", "Data2VecTextModel", "JinaEmbeddingsV3Model", "MPNetModel"),
    *("XLMRobertaModel", "XLMRobertaXLModel"),
)


class ClassHead:
    """logits = out(norm(act(dense(states)))), or out(states).

    Args:
        ctx: The build context.
        names: Of the weights.
        size, count: Channels of a state, classes.
        deep: Whether there is more than the last matrix.
        biases: Whether dense and norm have biases.
        eps: Of the norm.
    """

    def __init__(
        self,
        ctx: BuildContext,
        names: HeadNames,
        size: int,
        count: int,
        deep: bool,
        biases: tuple[bool, bool],
        eps: float,
    ) -> None:
        self._device, self._eps, self._deep = ctx.device, eps, deep
        self._activation = ACTIVATIONS[names.activation]
        self._held: dict[str, Tensor] = {}
        ctx.weight_bytes.append(lambda: sum(held.nbytes for held in self._held.values()))
        self._norm = names.norm is not None and deep
        self._expect(ctx, names.out, "out", (count, size), True)
        if deep:
            self._expect(ctx, names.dense, "dense", (size, size), biases[0])
        if names.norm is not None and deep:
            self._expect(ctx, names.norm, "norm", (size,), biases[1])

    def _expect(
        self, ctx: BuildContext, name: str, part: str, shape: tuple[int, ...], bias: bool
    ) -> None:
        ctx.weights.expect(f"{name}.weight", shape, partial(self._take, f"{part}.weight"))
        if bias:
            ctx.weights.expect(f"{name}.bias", shape[:1], partial(self._take, f"{part}.bias"))

    def _take(self, name: str, tensor: Tensor) -> None:
        fresh = tensor.to(self._device, torch.float32, copy=True)
        self._held[name] = renewed(self._held.get(name), fresh)

    def __call__(self, states: Tensor) -> Tensor:
        """Map [n, size] to [n, count] float32."""
        x, held = states.float(), self._held
        if self._deep:
            x = self._activation(functional.linear(x, held["dense.weight"], held.get("dense.bias")))
        if self._norm:
            weights = held["norm.weight"], held.get("norm.bias")
            x = functional.layer_norm(x, x.shape[-1:], *weights, self._eps)
        return functional.linear(x, held["out.weight"], held["out.bias"])


def build(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build an encoder and its head for classes of texts.

    Raises:
        CheckpointError: Its classes are malformed, or the encoder's own description is.
    """
    return _with_head(config, ctx, ENCODER_CLASSIFIERS[config.architecture], CLASSIFY)


def build_tokens(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build an encoder and its head for classes of tokens.

    Raises:
        CheckpointError: As above.
    """
    return _with_head(config, ctx, TOKEN_CLASSIFIERS[config.architecture], TOKEN_CLASSIFY)


def _with_head(config: ModelConfig, ctx: BuildContext, base: str, task: str) -> Encoder:
    model: Encoder = resolve_lazy(ARCHITECTURES[base])(replace(config, architecture=base), ctx)
    names = NAMES.get("RobertaModel" if base in AS_ROBERTA else base, NAMES["BertModel"])
    if (chosen := config.get("classifier_activation")) is not None:
        if chosen not in ACTIVATIONS:
            raise refuse(config, "classifier_activation", f"knows only {', '.join(ACTIVATIONS)}")
        names = replace(names, activation=chosen)
    if (pooling := config.get("classifier_pooling", "cls")) not in ("cls", "mean"):
        raise refuse(config, "classifier_pooling", "knows only cls and mean")
    model.class_pooling = cast(PoolingKind, pooling)
    biases = (True, True)
    if names.norm is not None:
        biases = config.get("classifier_bias") is True, config.get("norm_bias") is True
    eps = config.get("norm_eps", 1e-5)
    count = len(read_classifier(config).labels)
    deep = task == CLASSIFY or names.norm is not None
    if not deep:
        names = replace(names, out="classifier")
    model.classify = ClassHead(ctx, names, model.hidden_size, count, deep, biases, eps)
    model.tasks = model.tasks | {task}
    return model
