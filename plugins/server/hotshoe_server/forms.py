"""The form that an answer must have: grammars of calls and of text, and a limit of reasoning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hotshoe.errors import RequestError
from hotshoe.text.parsing import CallGrammar
from hotshoe.types import GrammarSpec
from hotshoe_server.errors import ApiError
from hotshoe_server.renderer import Rendered
from hotshoe_server.schemas.grammar import StructuredOutputs
from hotshoe_server.state import Served

if TYPE_CHECKING:
    from hotshoe_server.conversation import Dialogue, ToolPlan

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
#: How much of a prompt's end a parser sees: it looks for the opening of a reasoning section.
PROMPT_TAIL_CHARS = 256
#: The field that bounds how many tokens a model thinks before it answers.
THINKING = "thinking_token_budget"


def grammar_of(
    served: Served, rendered: Rendered, tools: ToolPlan, wanted: Any
) -> GrammarSpec | None:
    """Return the grammar of an answer: of forced or strict calls, of its text, or of both.

    Raises:
        ApiError: The form of the text is malformed or too long.
        RequestError: The tool format cannot keep a schema.
    """
    ends = _reasoning_ends(served, rendered)
    # A forced call leaves no text to give a form.
    form = None if tools.forced else bounded_grammar(served, wanted, ends)
    content = None if form is None else _schema_of(form)
    found = served.tool_format.calls if tools.callable and served.tool_format else None
    if found is None or not (tools.constrained or form) or (form and content is None):
        return form
    written = found(tools.kept)
    if written.reasoning:  # the grammar has its reasoning in it
        return _with_blanks(GrammarSpec.structural_tag(call_grammar(written, tools, content)), form)
    special = served.renderer.tokenizer.special_token_texts.values()
    reasoning = served.reasoning_format.markers if served.reasoning_format else ()
    marks = [mark for mark in reasoning if mark in special]
    tag = GrammarSpec.structural_tag(call_grammar(written, tools, content, marks), ends)
    return _with_blanks(tag, form)


def _with_blanks(tag: GrammarSpec, form: GrammarSpec | None) -> GrammarSpec:
    return tag if form is None else replace(tag, max_blanks=form.max_blanks)


def _schema_of(form: GrammarSpec) -> Any:
    """Return the schema that a form must keep; None if it has none, or a malformed one.

    A backend says so of the latter.
    """
    if form.kind == "json_object" or not form.strict:
        return ANY_OBJECT
    try:
        schema = json.loads(form.value) if form.kind == "json_schema" else None
    except (ValueError, RecursionError):
        return None
    return schema if isinstance(schema, (dict, bool)) else None


def bounded_grammar(
    served: Served, wanted: Any, after: Sequence[Sequence[int]] = ()
) -> GrammarSpec | None:
    """Return the grammar of a form.

    Raises:
        ApiError: It is malformed, or longer than this server takes.
    """
    if wanted is None:
        return None
    field = "structured_outputs" if isinstance(wanted, StructuredOutputs) else "response_format"
    try:
        grammar: GrammarSpec = wanted.spec(after)
    except RequestError as error:
        raise ApiError("invalid_value", str(error), field) from error
    limit = served.config.max_schema_bytes
    if len(grammar.value.encode()) > limit:
        raise ApiError(
            "invalid_value",
            f"the grammar may have {limit} bytes (--max-schema-bytes), no more",
            field,
        )
    return grammar


def _reasoning_ends(served: Served, rendered: Rendered) -> list[list[int]]:
    """Return what must come before a grammar begins, when the answer begins with reasoning."""
    found = served.reasoning_format
    if found is None or not found.reasons_after(rendered.text[-PROMPT_TAIL_CHARS:]):
        return []
    tokenizer = served.renderer.tokenizer
    return [tokenizer.encode(end, add_special_tokens=False) for end in found.reasoning_ends]


def limit_thinking(served: Served, dialogue: Dialogue, budget: int) -> Dialogue:
    """Let reasoning end after so many tokens.

    The mark that ends it is made to come then. A response that does not reason has no limit.

    Args:
        served: Knows how the model writes reasoning.
        dialogue: What is run.
        budget: Tokens of reasoning at most.

    Raises:
        ApiError: Nobody knows how the model ends reasoning.
    """
    found = served.reasoning_format
    if not bounds_thinking(served):
        message = "there is none; the server needs --reasoning-parser"
        if found is not None:
            message = f"format {found.name} has no mark that ends all reasoning"
        raise ApiError(
            "unsupported_parameter", f"{THINKING} limits reasoning, but {message}", THINKING
        )
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


def call_grammar(
    written: CallGrammar,
    plan: ToolPlan,
    content: Mapping[str, Any] | None = None,
    marks: Sequence[str] = (),
) -> dict[str, Any]:
    """Describe a response as a structural tag.

    Where a call is forced, it only calls tools; otherwise text is free up to what announces a call,
    and what follows is one of the tools. The arguments of forced calls and of strict tools follow
    their schemas.

    Args:
        written: How calls look.
        plan: What may be called.
        content: Schema of the response's text where it calls no tool; it is not free then.
        marks: Special tokens that free text may hold beside those of calls.
    """
    only = plan.forced or content is not None
    one = not plan.parallel or written.separator is None
    tag: dict[str, Any] = {
        "structures": [_structure(tag.begin, tag.content, tag.end) for tag in written.tags],
        "triggers": list(written.triggers),
        "opening": list(written.openings),
        "separator": written.separator if plan.parallel else None,
        "closing": written.closing,
        "at_least_one": only,
        "stop_after_first": only or one or bool(written.leading),
        "leading": list(written.leading),
    }
    tag |= {"preface": list(written.reasoning)} if only else {"marks": [*written.marks, *marks]}
    if content is not None and written.answer:
        tag["structures"].append(_structure(written.answer, content, ""))
        tag["triggers"].append(written.answer)
    elif content is not None:
        # Text is JSON as well, so that only a mark tells a call from it.
        tag |= {"opening": [o for o in written.openings if _marked(o, written)], "leading": []}
        tag["otherwise"] = content
    return {"type": "structural_tag", **tag}


def _marked(opening: str, written: CallGrammar) -> bool:
    return any((opening + tag.begin).startswith(written.triggers) for tag in written.tags)


def _structure(begin: str, content: Any, end: str) -> dict[str, Any]:
    if isinstance(content, Sequence):
        return {"begin": begin, "parts": list(content), "end": end}
    return {"begin": begin, "schema": ANY_OBJECT if content is None else content, "end": end}
