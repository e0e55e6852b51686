"""How requests end: finish reasons and usage, as all endpoints report them."""

from __future__ import annotations

from hotshoe.text.output_processor import RequestUpdate
from hotshoe.types import FinishReason
from hotshoe_server.schemas.answers import CompletionTokensDetails, PromptTokensDetails, Usage


def finish_reason(reason: FinishReason | None, called: bool = False) -> str:
    """Return OpenAI's word for an end; "abort" has none there, and stays."""
    if called and reason is FinishReason.STOP:
        return "tool_calls"
    return reason.value if reason is not None else "abort"


def usage_of(*updates: RequestUpdate, num_reasoning_tokens: int = 0) -> Usage:
    """Count the tokens of requests up to their last updates."""
    prompt = sum(update.num_prompt_tokens for update in updates)
    generated = sum(update.num_generated_tokens for update in updates)
    return Usage(
        prompt,
        generated,
        prompt + generated,
        PromptTokensDetails(sum(update.num_cached_tokens for update in updates)),
        CompletionTokensDetails(num_reasoning_tokens),
    )
