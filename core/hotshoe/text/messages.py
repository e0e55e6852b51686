"""Messages as chat templates expect them, whoever sends them.

`Tokenizer.apply_chat_template` brings every message into this form, so that the server and `LLM`
render a conversation alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hotshoe.errors import RequestError


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
