"""Chat templates of model directories, rendered in a sandbox that bounds their work, and messages
as they expect them, whoever sends them: the server and `LLM` render a conversation alike.

The Jinja dialect is that of the Hugging Face `transformers` library: the same whitespace rules,
filters and globals. Templates come from the model directory or the configuration, and from a
request only where the operator of a server trusts those. Used by
`Tokenizer.apply_chat_template`; jinja2 is imported when a template is first rendered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hotshoe.errors import CheckpointError, ConfigError, RequestError
from hotshoe.models.files import read_file

if TYPE_CHECKING:
    from jinja2 import Environment, Template

#: Of a template's file.
MAX_TEMPLATE_BYTES = 2**20
#: Marks the end of a text that shall be gone on with; of characters that mean nothing anywhere.
_END = "\ue0f7\ue1f3end\ue1f3\ue0f7"


def render(source: str, variables: Mapping[str, Any], keep: bool = True) -> str:
    """Render a template.

    Args:
        source: The template.
        variables: By name.
        keep: Keep it compiled for the next request.

    Raises:
        CheckpointError: The template itself is malformed.
        RequestError: The template refuses these messages or cannot handle them.
    """
    from hotshoe.text.template_limits import METER, Meter

    template = _compile(source) if keep else _compile.__wrapped__(source)
    try:
        return template.render({**variables, METER: Meter()})
    except Exception as error:
        # Templates compute with request data, so any exception may come out of one.
        raise RequestError(
            f"the chat template cannot render these messages: {error or type(error).__name__}",
            "messages",
        ) from error


def read_template(given: str) -> str:
    """Return a template that is given itself, or by the name of its file.

    Raises:
        ConfigError: The file cannot be read, or the template is malformed.
    """
    try:
        inline = "{{" in given or "{%" in given
        source = given if inline else read_file(Path(given), MAX_TEMPLATE_BYTES).decode()
        _compile(source)
    except (CheckpointError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template: {error}") from None
    return source


@lru_cache(maxsize=8)
def _compile(source: str) -> Template:
    from jinja2 import TemplateSyntaxError

    try:
        return _environment().from_string(source)
    except TemplateSyntaxError as error:
        raise CheckpointError(
            f"the model's chat template is malformed in line {error.lineno}: {error.message}"
        ) from error
    except (SyntaxError, RecursionError, ValueError, MemoryError) as error:  # of deep nesting
        cause = error or type(error).__name__
        raise CheckpointError(f"the model's chat template cannot be compiled: {cause}") from error


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    from hotshoe.text.template_limits import BoundedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what the assistant wrote, for training; here it is only text."""

        tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

        def parse(self, parser: Parser) -> nodes.Node:
            lineno = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=lineno)

    environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.bound_filters()
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as it is; Jinja's own filter would escape it for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


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
