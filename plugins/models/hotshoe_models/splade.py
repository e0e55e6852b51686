"""Encoders whose vectors have an entry for each word of the vocabulary: learned sparse embeddings.

An entry is the largest of log(1 + max(logit, 0)) over the tokens, of logits that the head for
words makes. sentence-transformers calls the modules MLMTransformer and SpladePooling. Source:
Formal et al. 2021, arXiv:2109.10086.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from hotshoe.layers import BuildContext, ForwardBatch
from hotshoe.lazy import resolve_lazy
from hotshoe.models import ModelConfig
from hotshoe.models.base import EMBED
from hotshoe.models.pooling import pools_words
from hotshoe.slots import renewed
from hotshoe_models.encoder import Encoder
from hotshoe_models.encoder_heads import ACTIVATIONS
from hotshoe_models.plugin import MASKED
from hotshoe_models.values import flag, number, refuse

#: vLLM's name for BERT with such vectors, which no file has: overrides say it.
SPARSE = "BertSpladeSparseEmbeddingModel"


@dataclass(frozen=True, slots=True)
class WordNames:
    """A head for words in a checkpoint.

    Attributes:
        dense, norm: The matrix in front, and the norm behind it.
        words: The matrix with a row for each word, where it is not the embedding.
        bias: Of the words.
        activation, eps: Keys of config.json, or the value itself.
    """

    dense: str
    norm: str
    words: str
    bias: str
    activation: str
    eps: str | float = "layer_norm_eps"


BERT = WordNames(
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.decoder",
    "cls.predictions.bias",
    "hidden_act",
)
ROBERTA = WordNames(
    "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias", "gelu"
)
DISTIL = WordNames(
    *("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"),
    "activation",
    1e-12,
)
#: By the class; the words of the others are not read.
NAMES: Mapping[str, WordNames] = {
    "BertForMaskedLM": BERT,
    SPARSE: BERT,
    "DistilBertForMaskedLM": DISTIL,
    **dict.fromkeys(("Camembert", "Roberta", "XLMRoberta"), ROBERTA),
}


def build(config: ModelConfig, ctx: BuildContext) -> Encoder | SparseEncoder:
    """Build an encoder with a head for words, which is read where vectors are made of it.

    Raises:
        CheckpointError: They are, and the family's head is not known.
    """
    name = config.architecture
    base = "BertModel" if name == SPARSE else name
    encoder: Encoder = resolve_lazy(MASKED[base])(replace(config, architecture=base), ctx)
    if name != SPARSE and not pools_words(config.path):
        return encoder
    names = NAMES.get(name) or NAMES.get(name.removesuffix("ForMaskedLM"))
    if names is None:
        raise refuse(config, "architectures", "has no head for words that is known here")
    return SparseEncoder(encoder, WordHead(config, ctx, names, encoder))


class WordHead:
    """entries = log(1 + max(norm(act(dense(states))) W^T + bias, 0)), in float32.

    Every rank has all of it.

    Args:
        config: Of the model.
        ctx: The build context.
        names: Of the weights.
        encoder: What makes the states.
    """

    def __init__(
        self, config: ModelConfig, ctx: BuildContext, names: WordNames, encoder: Encoder
    ) -> None:
        size, words = encoder.hidden_size, encoder.vocab_size
        chosen = config.get(names.activation, "gelu")
        if chosen not in ACTIVATIONS:
            raise refuse(config, names.activation, f"knows only {', '.join(ACTIVATIONS)}")
        self._activation = ACTIVATIONS[chosen]
        default = 1e-12 if names.eps == "layer_norm_eps" else names.eps
        self._eps = default if isinstance(names.eps, float) else number(config, names.eps)
        self._device, self._held = ctx.device, dict[str, Tensor]()
        ctx.weight_bytes.append(lambda: sum(held.nbytes for held in self._held.values()))
        tied = config.get("tie_word_embeddings") is None or flag(config, "tie_word_embeddings")
        wanted = {
            f"{names.dense}.weight": (size, size),
            f"{names.dense}.bias": (size,),
            f"{names.norm}.weight": (size,),
            f"{names.norm}.bias": (size,),
            encoder.words if tied else f"{names.words}.weight": (words, size),
            names.bias: (words,),
        }
        parts = ("dense", "dense_bias", "norm", "norm_bias", "words", "bias")
        for part, (name, shape) in zip(parts, wanted.items(), strict=True):
            ctx.weights.expect(name, shape, partial(self._take, part))

    def _take(self, part: str, tensor: Tensor) -> None:
        fresh = tensor.to(self._device, torch.float32, copy=True)
        self._held[part] = renewed(self._held.get(part), fresh)

    def __call__(self, states: Tensor) -> Tensor:
        """Map [n, size] to [n, words] float32."""
        held = self._held
        x = self._activation(functional.linear(states.float(), held["dense"], held["dense_bias"]))
        x = functional.layer_norm(x, x.shape[-1:], held["norm"], held["norm_bias"], self._eps)
        return functional.linear(x, held["words"], held["bias"]).relu_().log1p_()


class SparseEncoder:
    """See `hotshoe.models.base.Model`: an encoder whose states are entries for words."""

    def __init__(self, encoder: Encoder, words: WordHead) -> None:
        self._encoder, self._words = encoder, words
        self.vocab_size = self.hidden_size = encoder.vocab_size
        self.tasks = frozenset({EMBED})
        self.embed, self.scale_embeddings = encoder.embed, encoder.scale_embeddings

    def forward(self, hidden: Tensor, batch: ForwardBatch) -> Tensor:
        """Return [n, vocab_size] float32 of the tokens at `batch.outputs_at` (of all, if None)."""
        return self._words(self._encoder.forward(hidden, batch))

    def head(self, hidden: Tensor, task: str) -> Tensor:
        """Return pooled entries as they are."""
        return hidden.float()
