"""Decoders with a head for classes: `*ForSequenceClassification`, rewards and rerankers among them.

The head is a matrix without bias behind the final norm. It reads the last token's state, and is
computed in float32. A reranker that answers in words, such as Qwen3-Reranker, has none of its own:
overrides name the tokens, and the matrix is the rows of these in the output matrix.
`Qwen2ForRewardModel` has two matrices with biases. Sources of classes that transformers lacks: the
published code of Qwen2.5-Math-RM and of InternLM2's rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext
from hotshoe.lazy import resolve_lazy
from hotshoe.models import ModelConfig
from hotshoe.models.base import CLASSIFY, GENERATE
from hotshoe.models.pooling import FROM_TOKEN, class_tokens, read_classifier, takes_difference
from hotshoe.slots import renewed
from hotshoe.text.tokenizer import Tokenizer
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.encoder_heads import ClassHead, HeadNames
from hotshoe_models.plugin import ARCHITECTURES, CLASSIFIERS
from hotshoe_models.spec import WeightNames

NAMES = WeightNames()
#: Classes whose head has an activation between two matrices.
DEEP = {"Qwen2ForRewardModel": HeadNames("score.0", "score.2", "relu")}
#: Names of heads of one matrix, where they are others.
HEADS = {"InternLM2ForRewardModel": "v_head"}
#: Families whose output matrix is the embedding where the file does not say.
TIED = ("Gemma",)


class Score:
    """logits = hidden W^T in float32.

    Args:
        ctx: The build context of the last stage.
        name: Of the tensor in the checkpoint.
        shape: Of that tensor, [rows, hidden_size].
        rows: Those that are wanted, in the order of the classes; None for all.
        difference: There is one class: the second row less the first.
    """

    def __init__(
        self,
        ctx: BuildContext,
        name: str,
        shape: tuple[int, int],
        rows: Sequence[int] | None = None,
        difference: bool = False,
    ) -> None:
        self._device, self._rows, self._difference = ctx.device, rows, difference
        self._weight = torch.empty(0)
        ctx.weight_bytes.append(lambda: self._weight.nbytes)
        ctx.weights.expect(name, shape, self._take)

    def _take(self, tensor: Tensor) -> None:
        chosen = tensor if self._rows is None else tensor[list(self._rows)]
        weight = chosen.to(self._device, torch.float32, copy=True)
        self._weight = renewed(
            self._weight, weight[1:] - weight[:1] if self._difference else weight
        )

    def __call__(self, hidden: Tensor) -> Tensor:
        """Map [n, hidden_size] to [n, classes] float32."""
        return hidden.float() @ self._weight.T


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build a decoder with a head for classes in place of its output matrix.

    Raises:
        CheckpointError: Its classes are malformed, or the decoder's own description is.
    """
    base = CLASSIFIERS[config.architecture]
    bare = replace(
        config, architecture=base.removesuffix("ForCausalLM").removesuffix("LMHeadModel") + "Model"
    )
    model: DenseDecoder = resolve_lazy(ARCHITECTURES[base])(bare, ctx)
    model.tasks = model.tasks - {GENERATE} | {CLASSIFY}
    count = len(read_classifier(config).labels)
    tokens = _token_ids(config, model.vocab_size)
    name, rows = _place(config), tokens or None
    shape = (model.vocab_size if tokens else count, model.hidden_size)
    if ctx.stage.is_last and config.architecture in DEEP:
        sizes = model.hidden_size, count
        model.classify = ClassHead(ctx, DEEP[config.architecture], *sizes, True, (True, True), 0.0)
    elif ctx.stage.is_last:
        model.classify = Score(ctx, name, shape, rows, takes_difference(config))
    elif not tokens:
        ctx.weights.elsewhere([r"^(score|v_head)\."])
    return model


def _place(config: ModelConfig) -> str:
    """Return the name of the tensor that has the classes."""
    if not class_tokens(config):
        return f"{HEADS.get(config.architecture, 'score')}.weight"
    tied = config.get("tie_word_embeddings", config.architecture.startswith(TIED))
    return f"{NAMES.embedding if tied else NAMES.lm_head}.weight"


def _token_ids(config: ModelConfig, vocab_size: int) -> list[int]:
    """Return the ids of the tokens that are classes.

    Raises:
        CheckpointError: The vocabulary lacks one.
    """
    tokens = class_tokens(config)
    known = Tokenizer.load(config.path).token_ids if {str} & set(map(type, tokens)) else {}
    ids = [token if isinstance(token, int) else known.get(token, -1) for token in tokens]
    for token, found in zip(tokens, ids, strict=True):
        if not 0 <= found < vocab_size:
            raise CheckpointError(
                f"config.json: {FROM_TOKEN} names {token!r}, which the vocabulary does not have"
            )
    return ids
