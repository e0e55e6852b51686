"""How requests end: finish reasons and usage, as all endpoints report them."""

from __future__ import annotations

from hotshoe.types import FinishReason, RequestOutput
from hotshoe_server.schemas.answers import PromptTokensDetails, Usage


def finish_reason(reason: FinishReason | None, called: bool = False) -> str:
    """Return OpenAI's word for an end; "abort" has none there, and stays."""
    if called and reason is FinishReason.STOP:
        return "tool_calls"
    return reason.value if reason is not None else "abort"


def usage_of(*outputs: RequestOutput) -> Usage:
    """Count the tokens of finished requests."""
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    generated = sum(len(s.token_ids) for output in outputs for s in output.outputs)
    cached = sum(output.num_cached_tokens for output in outputs)
    return Usage(prompt, generated, prompt + generated, PromptTokensDetails(cached))
