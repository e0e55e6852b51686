"""A bound on how many tokens a model thinks before it answers."""

from __future__ import annotations

from dataclasses import replace

from hotshoe.types import GrammarSpec
from hotshoe_server.conversation import PROMPT_TAIL_CHARS, Dialogue
from hotshoe_server.errors import ApiError
from hotshoe_server.state import Served

FIELD = "thinking_token_budget"


def limit_thinking(served: Served, dialogue: Dialogue, budget: int | None) -> Dialogue:
    """Let reasoning end after so many tokens.

    The mark that ends it is made to come then. A response that does not reason has no limit.

    Args:
        served: Knows how the model writes reasoning.
        dialogue: What is run.
        budget: Tokens of reasoning at most; None sets no limit.

    Raises:
        ApiError: Nobody knows how the model ends reasoning.
    """
    if budget is None:
        return dialogue
    found = served.reasoning_format
    if not bounds_thinking(served):
        message = "there is none; the server needs --reasoning-parser"
        if found is not None:
            message = f"format {found.name} has no mark that ends all reasoning"
        raise ApiError("unsupported_parameter", f"{FIELD} limits reasoning, but {message}", FIELD)
    assert found is not None
    grammar, encode = dialogue.params.grammar, served.renderer.tokenizer.encode
    if grammar is not None and not grammar.after:
        return dialogue  # the response has its form from the first token on, without reasoning
    if grammar is not None:
        limited = replace(grammar, free_tokens=budget)
    else:
        inside = found.reasons_after(dialogue.rendered.text[-PROMPT_TAIL_CHARS:])
        opening = () if inside else found.reasoning_begins
        limited = GrammarSpec.text(
            [encode(end, add_special_tokens=False) for end in found.reasoning_ends],
            budget,
            [encode(begin, add_special_tokens=False) for begin in opening],
        )
    return replace(dialogue, params=replace(dialogue.params, grammar=limited))


def bounds_thinking(served: Served) -> bool:
    """Tell whether reasoning ends with a mark of its own, behind which an answer can follow."""
    found = served.reasoning_format
    # A format of reasoning and calls in one ends reasoning in several ways.
    return found is not None and bool(found.reasoning_ends) and found.calls is None
