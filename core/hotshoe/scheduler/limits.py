"""How long a request may become, and who runs beside it. Refuses one that could never be served."""

from collections.abc import Iterable

from hotshoe.errors import RequestError
from hotshoe.kv import KVCoordinator
from hotshoe.scheduler.config import SchedulerConfig
from hotshoe.scheduler.request import Request


def length_limit(request: Request, config: SchedulerConfig, cache: KVCoordinator) -> int:
    """Return the length, in tokens, at which a request ends.

    Raises:
        RequestError: It could not be served even if it were alone.
    """
    length = request.num_prompt_tokens
    room = config.max_model_len - (request.pooling is None)
    if not 0 < length <= room:  # a front end that checks its prompts says more
        raise RequestError(f"the prompt has {length} tokens, not 1 to {room}", "prompt")
    max_tokens = request.params.max_tokens or config.max_model_len
    limit = min(room + 1, length + max_tokens)
    # The last token is never computed, so it needs no place.
    shortage = cache.shortage(limit - 1)
    if shortage is not None:
        raise RequestError(
            f"{length} prompt tokens and up to {limit - length} generated ones need "
            f"{shortage[0]} KV cache blocks of {config.block_size} tokens, but there are "
            f"{shortage[1]}; shorten the prompt or lower max_tokens",
            "max_tokens",
        )
    return limit


def lacks_place(request: Request, running: Iterable[Request], config: SchedulerConfig) -> bool:
    """Tell whether so many other adapters run that a request's own must wait for one to end."""
    adapter = request.params.adapter
    if adapter is None:
        return False
    others = {other.params.adapter for other in running} - {None, adapter}
    return len(others) >= config.max_adapters
