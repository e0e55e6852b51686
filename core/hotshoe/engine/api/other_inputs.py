"""What requests ask for beside the continuation of a text: vectors, or prompts of embeddings."""

from __future__ import annotations

from collections.abc import Sequence

from hotshoe.engine.client import EngineInfo
from hotshoe.errors import RequestError
from hotshoe.types import EmbedsPrompt, Pooling, PoolingParams, SamplingParams, TokensPrompt

#: Most numbers that one answer may have: all states of a prompt of 8,192 tokens, 1,024 each.
MAX_NUMBERS = 2**23

#: Parameters that look at the prompt's token ids, with the values that do not.
_ABOUT_PROMPT = {"prompt_logprobs": None, "repetition_penalty": 1.0}


def pooling_of(info: EngineInfo, params: PoolingParams) -> Pooling:
    """Return how a model makes the vector that a request asks for.

    Raises:
        RequestError: It makes none, or not such a one.
    """
    if params.task.startswith("token"):
        return params.over(_token_pooling(info, params.task), info.token_size)
    if params.task == "classify":
        if info.classifier is None or params.task not in info.tasks:
            raise RequestError(
                "this model has no head for classes; serve a checkpoint of a class such as "
                "LlamaForSequenceClassification",
                "model",
            )
        return params.over(info.classifier.pooling(), info.vector_size)
    if "embed" not in info.tasks or info.pooling is None:
        raise RequestError(
            "this model makes no embeddings: its checkpoint does not say how (modules.json), "
            "and the engine was not told (--pooling last, mean, cls or max)",
            "model",
        )
    return params.over(info.pooling, info.vector_size)


def _token_pooling(info: EngineInfo, task: str) -> Pooling:
    """Return how the vectors or classes of tokens are made.

    Raises:
        RequestError: There are none.
    """
    if task not in info.tasks:
        kinds = {
            "token_embed": "encoders make",
            "token_classify": "models with a head for them make",
        }
        raise RequestError(
            f"this model has no task {task}; {kinds[task]} vectors of tokens, as far as those of "
            "a step fit into a message (--max-num-batched-tokens; of decoders --max-num-seqs times "
            "--max-model-len)",
            "model",
        )
    if task == "token_embed":
        return Pooling("all", task="token_embed")
    assert info.classifier is not None, "classes of tokens have names"
    return info.classifier.token_pooling()


def check_steps(pooling: Pooling, token_ids: Sequence[int]) -> None:
    """Refuse a prompt without a step where classes are those of steps.

    Raises:
        RequestError: There is none.
    """
    step = pooling.step_token
    if step is not None and step not in token_ids:
        raise RequestError(
            f"the prompt has no token {step}, which ends a step; put it behind each "
            "step whose class you want, and give it by its id, or let the engine read special "
            "tokens in texts (--allow-special-tokens-in-text)",
            "prompt",
        )


def check_numbers(info: EngineInfo, params: PoolingParams, num_tokens: int, field: str) -> None:
    """Refuse a request whose answer would be too long.

    Args:
        info: Of the engine.
        params: Of the request.
        num_tokens: Of all prompts together.
        field: Has the prompts.

    Raises:
        RequestError: It would have more than `MAX_NUMBERS`.
    """
    if not params.task.startswith("token"):
        return
    size = params.dimensions or info.token_size
    if params.task == "token_classify" and info.classifier is not None:
        size = len(info.classifier.labels)
    if num_tokens * size > MAX_NUMBERS:
        raise RequestError(
            f"{num_tokens} tokens with {size} numbers each are {num_tokens * size} numbers, but an "
            f"answer may have {MAX_NUMBERS}; give fewer or shorter texts, or ask for fewer "
            "dimensions",
            field,
        )


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
