"""Chat templates of model directories, rendered in a sandbox that bounds their work.

The Jinja dialect is that of the Hugging Face `transformers` library: the same whitespace rules,
filters and globals. Templates come from the model directory or the configuration, and from a
request only where the operator of a server trusts those. Used by
`Tokenizer.apply_chat_template`; jinja2 is imported when a template is first rendered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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
