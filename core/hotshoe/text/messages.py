"""Messages as chat templates expect them, whoever sends them.

`Tokenizer.apply_chat_template` brings every message into this form, so that the server and `LLM`
render a conversation alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hotshoe.errors import RequestError

#: Marks the end of a text that shall be gone on with; of characters that mean nothing anywhere.
_END = "\ue0f7\ue1f3end\ue1f3\ue0f7"


def template_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its content as text and the arguments of its calls as objects.

    Args:
        message: In OpenAI's form. Contents made of text parts are joined by line ends, fields that
            are None are left out.

    Raises:
        RequestError: The message is no object, or a part of its content is not text.
    """
    if not isinstance(message, Mapping):
        raise RequestError(f"a message is an object, not {message!r:.100}", "messages")
    found = {name: value for name, value in message.items() if value is not None}
    content = found.get("content")
    if isinstance(content, (list, tuple)):
        found["content"] = "\n".join(_part_text(part) for part in content)
    found.setdefault("content", "")
    if isinstance(found.get("tool_calls"), (list, tuple)):
        found["tool_calls"] = [_template_call(call) for call in found["tool_calls"]]
    return found


def marked_end(
    messages: Sequence[dict[str, Any]], add_generation_prompt: bool
) -> list[dict[str, Any]]:
    """Return messages with a mark at the end of the last one's text, for `cut_at_end`.

    Raises:
        RequestError: A new message shall follow as well, or the last one has no text.
    """
    if add_generation_prompt:
        raise RequestError(
            "continue_final_message goes on with the last message and add_generation_prompt begins "
            "a new one; set one of them",
            "continue_final_message",
        )
    content = messages[-1].get("content")
    if not isinstance(content, str) or not content or "tool_calls" in messages[-1]:
        raise RequestError(
            "continue_final_message needs a last message that is text alone",
            "continue_final_message",
        )
    return [*messages[:-1], {**messages[-1], "content": content + _END}]


def cut_at_end(text: str) -> str:
    """Return a rendered text up to the mark.

    Raises:
        RequestError: The template does not show the last message.
    """
    before, mark, _ = text.rpartition(_END)
    if not mark:
        raise RequestError(
            "continue_final_message: the chat template does not show the last message's text",
            "continue_final_message",
        )
    return before


def _part_text(part: Any) -> str:
    for name in ("text", "refusal"):
        if isinstance(part, Mapping) and isinstance(part.get(name), str):
            return str(part[name])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise RequestError(f"this model takes text only, no {kind}", "messages")


def _template_call(call: Any) -> Any:
    """Return a call with its arguments read, if they are JSON; else as the model once wrote it."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
