"""What requests ask for beside the continuation of a text: vectors, or prompts of embeddings."""

from __future__ import annotations

from hotshoe.engine.client import EngineInfo
from hotshoe.errors import RequestError
from hotshoe.types import EmbedsPrompt, Pooling, PoolingParams, SamplingParams, TokensPrompt

#: Parameters that look at the prompt's token ids, with the values that do not.
_ABOUT_PROMPT = {"prompt_logprobs": None, "repetition_penalty": 1.0}


def pooling_of(info: EngineInfo, params: PoolingParams) -> Pooling:
    """Return how a model makes the vector that a request asks for.

    Raises:
        RequestError: It makes none, or not such a one.
    """
    if params.task == "classify":
        if info.classifier is None:
            raise RequestError(
                "this model has no head for classes; serve a checkpoint of a class such as "
                "LlamaForSequenceClassification",
                "model",
            )
        return params.over(info.classifier.pooling(), info.hidden_size)
    if "embed" not in info.tasks or info.pooling is None:
        raise RequestError(
            "this model makes no embeddings: its checkpoint does not say how (modules.json), "
            "and the engine was not told (--pooling last, mean, cls or max)",
            "model",
        )
    return params.over(info.pooling, info.hidden_size)


def read_embeds(
    prompt: EmbedsPrompt, params: SamplingParams, hidden_size: int
) -> tuple[bytes, TokensPrompt]:
    """Return the rows as little-endian float32, and token ids that stand for them.

    Raises:
        RequestError: They are malformed, or a parameter looks at token ids.
    """
    if not hidden_size:
        raise RequestError("this engine takes no embeddings", "prompt")
    from hotshoe.models.embeds import embeds_bytes  # numpy, for those who need it

    rows, count = embeds_bytes(prompt.embeds, hidden_size)
    for name, harmless in _ABOUT_PROMPT.items():
        if getattr(params, name, harmless) != harmless:
            raise RequestError(
                f"{name} looks at the prompt's token ids, which embeddings have none of", name
            )
    return rows, TokensPrompt([0] * count, prompt.cache_salt)
