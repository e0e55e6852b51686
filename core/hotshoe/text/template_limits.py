"""Bounds what a chat template may compute: turns of its loops and macros, time, and text.

Jinja's sandbox keeps a template from the machine, but not from computing for ever. Here every turn
of a loop and every call of a macro is counted, and whatever makes long values of short ones is
weighed before it runs. One C call of bounded size between two turns is the finest grain of time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import TemplateRuntimeError
from jinja2.ext import Extension
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_TURNS = 1_000_000
#: Processor time of the thread, so that a busy machine refuses nothing.
MAX_SECONDS = 5.0
#: Characters of any text, entries of any list.
MAX_LENGTH = 2**24
#: Parts of a value that is written as text.
MAX_VALUES = 500_000
MAX_NUMBER_BITS = 4096
#: The largest whole number that a method or filter may be given: a width, a count.
MAX_ARGUMENT = 10**6
#: Where a render's meter lies among its variables; no template can write such a name.
METER = "the meter"
_WIDTHS = re.compile(r"\d{5,}|\*|\{[^{}]*\{")


class Meter:
    """What one rendering has used."""

    def __init__(self) -> None:
        self._turns = 0
        self._end = time.thread_time() + MAX_SECONDS

    def tick(self) -> None:
        """Count one turn.

        Raises:
            TemplateRuntimeError: There were too many, or they took too long.
        """
        self._turns += 1
        if self._turns > MAX_TURNS:
            raise TemplateRuntimeError(f"its loops take more than {MAX_TURNS} turns")
        if time.thread_time() > self._end:
            raise TemplateRuntimeError(f"it takes more than {MAX_SECONDS:g} seconds")


class Metered(Extension):
    """What compiled templates call."""

    @pass_context
    def tick(self, context: Context) -> None:
        context.parent[METER].tick()


def _check_length(length: int) -> None:
    if length > MAX_LENGTH:
        raise TemplateRuntimeError(f"it makes a value longer than {MAX_LENGTH}")


def check_weight(*values: Any) -> None:
    """Refuse values that would be too long as text; lists that hold the same list count it again.

    Raises:
        TemplateRuntimeError: They are.
    """
    num_chars, num_values, rest = 0, 0, list(values)
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            num_chars += len(value)
        elif isinstance(value, Mapping):
            rest += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple)):
            rest += value
        num_values += 1
        _check_length(num_chars)
        if num_values + len(rest) > MAX_VALUES:
            raise TemplateRuntimeError(f"it writes a value of more than {MAX_VALUES} parts")


def _joined(values: Iterable[Any], separator: str = "", *_: Any) -> None:
    check_weight(values)
    if isinstance(values, (list, tuple)):
        _check_length(len(values) * len(str(separator)))


def _replaced(text: str, old: str, new: str, *_: Any) -> None:
    _check_length(len(text) + str(text).count(str(old)) * len(str(new)))


def _formatted(text: str, *values: Any, **named: Any) -> None:
    if _WIDTHS.search(text):
        raise TemplateRuntimeError("it formats values with a width that is too large")
    check_weight(*values, named)
    longest = max((len(v) for v in (*values, *named.values()) if isinstance(v, str)), default=1)
    _check_length(text.count("%") * longest + text.count("{") * longest)


def _indented(text: str, width: Any = 4, *_: Any, **__: Any) -> None:
    size = width if isinstance(width, int) else len(width)
    _check_length(len(text) + (text.count("\n") + 1) * size)


def _wrapped(text: str, *rest: Any, wrapstring: str | None = None, **_: Any) -> None:
    longest = max((len(v) for v in (*rest, wrapstring) if isinstance(v, str)), default=1)
    _check_length((len(text) + 1) * longest)


def _added(values: Any, *rest: Any, start: Any = 0) -> None:
    if not isinstance(start, (int, float)) or any(isinstance(v, (list, tuple)) for v in rest):
        raise TemplateRuntimeError("it sums up something else than numbers")


#: How what a filter will make is weighed, given what it is given.
_FILTERS: dict[str, Callable[..., None]] = {
    "format": _formatted,
    "indent": _indented,
    "join": lambda values, d="", attribute=None: _joined(values, d),
    "pprint": check_weight,
    "replace": _replaced,
    "string": check_weight,
    "sum": _added,
    "tojson": lambda value, *_, **__: check_weight(value),
    "urlencode": check_weight,
    "wordwrap": _wrapped,
    "xmlattr": lambda value, *_: check_weight(value),
}
#: The same of methods of text, by name.
_METHODS: dict[str, Callable[..., None]] = {
    "expandtabs": lambda text, size=8: _check_length(len(text) + text.count("\t") * size),
    "join": lambda separator, values: _joined(values, separator),
    "replace": lambda text, old, new, *_, **__: _replaced(text, old, new),
    "translate": lambda text, table: _check_length(
        len(text) * max((len(v) for v in table.values() if isinstance(v, str)), default=1)
    ),
}


def _check_arguments(values: Iterable[Any]) -> None:
    if any(isinstance(value, int) and abs(value) > MAX_ARGUMENT for value in values):
        raise TemplateRuntimeError(f"it passes a number beyond {MAX_ARGUMENT}")


def bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that is weighed before it runs."""
    weigh = _FILTERS.get(name)
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        own = args[skipped:]
        _check_arguments((*own[1:], *kwargs.values()))
        if weigh is not None:
            if name == "join" and not isinstance(own[0], (str, list, tuple)):
                own = (list(own[0]), *own[1:])  # what is made on demand is made once
            weigh(*own, **kwargs)
        return function(*args[:skipped], *own, **kwargs)

    return checked


class _Generator(CodeGenerator):
    """Compiles templates so that each turn of a loop and each call of a macro is counted."""

    def visit_Template(self, node: nodes.Template, frame: Any = None) -> None:  # noqa: N802
        repeated: Iterable[Any] = node.find_all((nodes.For, nodes.Macro, nodes.CallBlock))
        for part in repeated:
            tick = nodes.ExtensionAttribute(Metered.identifier, "tick")
            call = nodes.Call(tick, [], [], None, None)
            part.body.insert(0, nodes.ExprStmt(call, lineno=part.lineno))
        super().visit_Template(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:  # noqa: N802
        self.write("environment.concat_values((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with limits. Every rendering brings a `Meter` as variable `METER`."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, extensions: Iterable[Any] = (), **options: Any) -> None:
        super().__init__(extensions=[Metered, *extensions], **options)
        self.finalize = _finalize
        self.globals.pop("lipsum")

    def bound_filters(self) -> None:
        """Weigh the work of every filter that is there by now."""
        self.filters = {name: bounded(name, f) for name, f in self.filters.items()}

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Join what a template, a macro or a block has written."""
        found, length = [], 0
        for piece in pieces:
            length += len(piece)
            _check_length(length)
            found.append(piece)
        return "".join(found)

    def concat_values(self, values: tuple[Any, ...]) -> str:
        """Join the operands of `~`."""
        check_weight(*values)
        return "".join(map(str, values))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute what can make much of little, once its size is known.

        Raises:
            TemplateRuntimeError: It would be too large.
        """
        sized = [v for v in (left, right) if isinstance(v, (str, list, tuple))]
        if operator == "%" and isinstance(left, str):
            values = right if isinstance(right, tuple) else (right,)
            _formatted(left, *values)
        elif operator == "+" and len(sized) == 2:
            _check_length(len(left) + len(right))
        elif operator == "*" and sized:
            count = right if sized[0] is left else left
            _check_length(len(sized[0]) * (count if isinstance(count, int) else 1))
        elif isinstance(left, int) and isinstance(right, int) and operator in ("*", "**"):
            bits = left.bit_length()
            most = bits * max(right, 1) if operator == "**" else bits + right.bit_length()
            if most > MAX_NUMBER_BITS:
                raise TemplateRuntimeError("it computes a number that is too large")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method or a function."""
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, (str, bytes, int, list, tuple)):
            _check_arguments((*args, *kwargs.values()))
            weigh = _METHODS.get(obj.__name__)
            if weigh is not None and isinstance(owner, str):
                weigh(owner, *args, **kwargs)
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Any:
        """Weigh `text.format(...)`, which the sandbox calls in a way of its own."""
        wrapper = super().wrap_str_format(value)
        if wrapper is None:
            return None

        def weighed(*args: Any, **kwargs: Any) -> Any:
            _formatted(value.__self__, *args, **kwargs)
            return wrapper(*args, **kwargs)

        return weighed


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    """Weigh what an expression writes: its text may be far longer than the value."""
    if not isinstance(value, str):
        check_weight(value)
    return value
