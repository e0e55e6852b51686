"""Decoders with a head for classes: `*ForSequenceClassification`, rewards and rerankers among them,
and `*ForTokenClassification`, with process rewards.

The head is a matrix behind the final norm, without a bias where it reads the last token's state,
and is computed in float32. A model that answers in words, such as Qwen3-Reranker or Math-Shepherd,
has none of its own: overrides name the tokens, and the matrix is their rows in the output matrix.
Rewards of Qwen 2 have two matrices with biases. A process reward model has classes at tokens that
end a step of a solution. Sources of classes that transformers lacks: the published code of
Qwen2.5-Math-RM and Qwen2.5-Math-PRM, and of InternLM2's rewards.
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
from hotshoe.models.base import CLASSIFY, GENERATE, TOKEN_CLASSIFY
from hotshoe.models.pooling import FROM_TOKEN, class_tokens, read_classifier, takes_difference
from hotshoe.slots import renewed
from hotshoe.text.tokenizer import Tokenizer
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.encoder_heads import ClassHead, HeadNames
from hotshoe_models.plugin import ARCHITECTURES, CLASSIFIERS, DECODER_TOKEN_CLASSIFIERS
from hotshoe_models.spec import WeightNames

NAMES = WeightNames()
#: Classes whose head has an activation between two matrices.
DEEP = dict.fromkeys(
    ("Qwen2ForProcessRewardModel", "Qwen2ForRewardModel"), HeadNames("score.0", "score.2", "relu")
)
#: What a file, or an override, says of the token that ends a step; and where none does.
STEP_TOKEN = "step_token"
STEPS = {"Qwen2ForProcessRewardModel": "<extra_0>"}
#: Names of heads of one matrix, where they are others.
HEADS = {"InternLM2ForRewardModel": "v_head"} | {
    f"{family}ForTokenClassification": "classifier"
    for family in (
        *("BioGpt", "Bloom", "Falcon", "GPT2", "GPTBigCode", "GPTNeo", "GPTNeoX", "Mpt"),
    )
}
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
    by_token = config.architecture in DECODER_TOKEN_CLASSIFIERS
    model.tasks = model.tasks - {GENERATE} | {TOKEN_CLASSIFY if by_token else CLASSIFY}
    if by_token:
        model.step_token = _step_token(config, model.vocab_size)
    if ctx.stage.is_last:
        model.classify = _head(config, ctx, model, by_token)
    elif not class_tokens(config):
        ctx.weights.elsewhere([r"^(score|v_head|classifier)\."])
    return model


def _head(
    config: ModelConfig, ctx: BuildContext, model: DenseDecoder, by_token: bool
) -> ClassHead | Score:
    """Build what makes logits of states."""
    count = len(read_classifier(config).labels)
    tokens = _token_ids(config, class_tokens(config), model.vocab_size)
    biased = by_token and not tokens and config.get("token_classification_bias", True) is True
    if (deep := DEEP.get(config.architecture)) or biased:
        names = deep or HeadNames("", HEADS.get(config.architecture, "score"), "relu")
        sizes = model.hidden_size, count
        return ClassHead(ctx, names, *sizes, deep is not None, (True, True), 0.0)
    shape = (model.vocab_size if tokens else count, model.hidden_size)
    return Score(ctx, _place(config), shape, tokens or None, takes_difference(config))


def _step_token(config: ModelConfig, vocab_size: int) -> int | None:
    """Return the token that ends a step; None where every token has a class.

    Raises:
        CheckpointError: It is no token.
    """
    step = config.get(STEP_TOKEN, STEPS.get(config.architecture))
    if step is None:
        return None
    if type(step) not in (str, int):
        raise CheckpointError(f"config.json: {STEP_TOKEN} must be a token, not {step!r}")
    return _token_ids(config, [step], vocab_size, STEP_TOKEN)[0]


def _place(config: ModelConfig) -> str:
    """Return the name of the tensor that has the classes."""
    if not class_tokens(config):
        return f"{HEADS.get(config.architecture, 'score')}.weight"
    tied = config.get("tie_word_embeddings", config.architecture.startswith(TIED))
    return f"{NAMES.embedding if tied else NAMES.lm_head}.weight"


def _token_ids(
    config: ModelConfig, tokens: Sequence[str | int], vocab_size: int, key: str = FROM_TOKEN
) -> list[int]:
    """Return the ids of tokens that a key names.

    Raises:
        CheckpointError: The vocabulary lacks one.
    """
    known = Tokenizer.load(config.path).token_ids if {str} & set(map(type, tokens)) else {}
    ids = [token if isinstance(token, int) else known.get(token, -1) for token in tokens]
    for token, found in zip(tokens, ids, strict=True):
        if not 0 <= found < vocab_size:
            raise CheckpointError(
                f"config.json: {key} names {token!r}, which the vocabulary does not have"
            )
    return ids
