"""What heads in a directory of their own have in common: parts, and whether they fit a model."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hotshoe.errors import ConfigError
from hotshoe.layers import BuildContext, Embedding, Linear, Matrix
from hotshoe.models import ModelConfig
from hotshoe.models.base import GENERATE
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import DecoderSpec
from hotshoe_models.values import mapping


class Embedded:
    """Embeddings of a head: its own where its checkpoint has them, else the model's."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, model: DenseDecoder) -> None:
        name = spec.names.embedding
        self._own = Embedding(ctx, name, spec.vocab_size, spec.hidden_size)
        if spec.hidden_size == model.hidden_size:
            ctx.weights.optional(f"{name}.weight")
            model.keep_embedding()
        self._model = model

    def __call__(self, ids: Tensor) -> Tensor:
        """Return [n, hidden_size] for ids [n]."""
        return self._own(ids) if self._own.state() else self._model.embed(ids)


class Joined:
    """A matrix of a head, with a bias where the checkpoint has one."""

    def __init__(self, ctx: BuildContext, name: str, inputs: int, size: int) -> None:
        self._linear = Linear(ctx, Matrix(ctx, [(name, size)], inputs, quantize=False))
        self._place = (ctx.device, ctx.torch_dtype)
        self._bias: Tensor | None = None
        ctx.weights.expect(f"{name}.bias", (size,), self._take)
        ctx.weights.optional(f"{name}.bias")

    def _take(self, bias: Tensor) -> None:
        self._bias = bias.to(*self._place, copy=True)

    def __call__(self, x: Tensor) -> Tensor:
        """Map [n, inputs] to [n, size]."""
        y = self._linear(x)
        return y if self._bias is None else y.add_(self._bias)


def plain_decoder(model: object, target: ModelConfig) -> DenseDecoder:
    """Refuse a model that no such head was trained for.

    Raises:
        ConfigError: Its states are no single vectors that its layers hand on.
    """
    if type(model) is not DenseDecoder or GENERATE not in model.tasks:
        raise ConfigError(
            f"{target.architecture} hands no hidden states to a head; use another method, such "
            "as auto or draft_model"
        )
    return model


def check_sizes(config: ModelConfig, model: DenseDecoder, names: Sequence[str]) -> None:
    """Refuse a head of another model, as far as its configuration has these sizes.

    Raises:
        ConfigError: One differs.
    """
    for name in names:
        size = model.vocab_size if name == "vocab_size" else model.hidden_size
        if config.size(name, size) != size:
            raise ConfigError(
                f"{name} of the head is {config.size(name)}, but the model has {size}; use a "
                "head that was trained for this model"
            )


def check_verifier(config: ModelConfig, target: ModelConfig) -> None:
    """Refuse a head whose file says that it was trained for another architecture.

    Raises:
        ConfigError: It does.
    """
    verifier = mapping(config, "speculators_config").get("verifier") or {}
    named = verifier.get("architectures") if isinstance(verifier, dict) else None
    if isinstance(named, list) and named and target.architecture not in named:
        raise ConfigError(
            f"the head was trained for {', '.join(map(str, named))}, but the model is "
            f"{target.architecture}; use a head that was trained for it"
        )
