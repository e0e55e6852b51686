"""From a conversation to what the engine runs, and from the engine's text to events.

Shared by the chat and the responses endpoints, which only word requests and answers differently.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from hotshoe.errors import RequestError
from hotshoe.text.output_processor import RequestUpdate, SequenceUpdate
from hotshoe.text.parsing import (
    ContentDelta,
    Event,
    MalformedCall,
    ParseContext,
    ParserFormat,
    ReasoningDelta,
    ResponseParser,
    ToolCallStart,
)
from hotshoe.text.response import ParsedResponse, collect, open_parser
from hotshoe.types import FinishReason, GrammarSpec, SamplingParams
from hotshoe_server.errors import ApiError
from hotshoe_server.renderer import Rendered
from hotshoe_server.schemas.grammar import StructuredOutputs
from hotshoe_server.state import Served
from hotshoe_server.tools import ANY_OBJECT, ToolPlan, call_grammar

#: How much of a prompt's end a parser sees: it looks for the opening of a reasoning section.
PROMPT_TAIL_CHARS = 256
#: The field that bounds how many tokens a model thinks before it answers.
THINKING = "thinking_token_budget"


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One conversation, ready to run.

    Attributes:
        rendered: The prompt.
        params: What the engine is asked for.
        tools: What may be called.
        reasoning, tool: Formats to read the answer with.
    """

    rendered: Rendered
    params: SamplingParams
    tools: ToolPlan
    reasoning: ParserFormat | None
    tool: ParserFormat | None

    def reader(self) -> Reader:
        """Return a reader for one sequence."""
        if self.reasoning is None and self.tool is None:
            return Reader(None, self.tools)
        context = ParseContext(self.tools.callable, self.rendered.text[-PROMPT_TAIL_CHARS:])
        return Reader(open_parser(context, self.reasoning, self.tool), self.tools)

    async def finish(
        self, updates: AsyncIterator[RequestUpdate]
    ) -> tuple[RequestUpdate, list[ParsedResponse], int]:
        """Run to the end.

        Returns:
            The last update, what each sequence says, and the number of reasoning tokens.
        """
        readers = [self.reader() for _ in range(self.params.n)]
        events: list[list[Event]] = [[] for _ in readers]
        update: RequestUpdate | None = None
        async with aclosing(updates):  # type: ignore[type-var]
            async for update in updates:
                for sequence in update.sequences:
                    events[sequence.index] += readers[sequence.index].read(sequence)
        assert update is not None, "a stream of updates ends with a finished one"
        num_reasoning_tokens = sum(reader.num_reasoning_tokens for reader in readers)
        return update, [collect(found) for found in events], num_reasoning_tokens


class Reader:
    """Turns one sequence's text into events; without a parser, all of it is content.

    Where tools may not be called in parallel, only the first call that holds is passed on. Text of
    a malformed call is content, whichever call it was; but a call that was forced and is cut off by
    the length is what has come of it, and no markup.

    Attributes:
        num_reasoning_tokens: From the beginning of each reasoning section to the last token that
            gave text to it; the mark that closes it does not count.
        finished: The sequence has ended.
    """

    __slots__ = ("_kept", "_parser", "_tools", "_undecided", "finished", "num_reasoning_tokens")

    def __init__(self, parser: ResponseParser | None, tools: ToolPlan) -> None:
        self._parser = parser
        self._tools = tools
        self._kept: int | None = None
        self._undecided = 0
        self.num_reasoning_tokens = 0
        self.finished = False

    @property
    def plain(self) -> bool:
        """True when all text is content."""
        return self._parser is None

    def read(self, sequence: SequenceUpdate) -> list[Event]:
        """Take what a sequence gained; with its end, also what was held back."""
        if self.finished:
            return []
        text, self.finished = sequence.new_text, sequence.finish_reason is not None
        if self._parser is None:
            return [ContentDelta(text)] if text else []
        events = self._parser.feed(text) if text else []
        if self.finished:
            rest = self._parser.finish()
            if self._tools.forced and sequence.finish_reason is not FinishReason.STOP:
                rest = [e for e in rest if not isinstance(e, (ContentDelta, MalformedCall))]
            events = [*events, *rest]
        self._count(events, len(sequence.new_token_ids))
        if self._tools.parallel:
            return events
        return [kept for event in events if (kept := self._one_call(event)) is not None]

    def _count(self, events: Sequence[Event], num_tokens: int) -> None:
        self._undecided += num_tokens
        for event in events:
            if isinstance(event, ReasoningDelta):
                self.num_reasoning_tokens += self._undecided
            self._undecided = 0

    def _one_call(self, event: Event) -> Event | None:
        """Return an event that belongs to the one call, or to none; drop those of other calls."""
        index = getattr(event, "index", None)
        if isinstance(event, ToolCallStart) and self._kept is None:
            self._kept = index
        if index is None or index == self._kept:
            if isinstance(event, MalformedCall) and index is not None:
                self._kept = None  # void: the next call takes its place
            return event
        # Nobody heard of that call, so its text is content.
        return replace(event, index=None) if isinstance(event, MalformedCall) else None


async def open_dialogue(
    served: Served,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
    tools: ToolPlan,
    make_params: Callable[..., SamplingParams],
    wanted: Any,
    add_special_tokens: bool = False,
) -> Dialogue:
    """Render a conversation and gather what its answer must conform to.

    Args:
        served: Where formats and limits are.
        messages: In chat's form.
        variables: Of the template, and what else `Renderer.chat` takes there.
        tools: From `plan_tools`.
        make_params: Called with further sampling parameters.
        wanted: The form of the text: an object with a method `spec`, or none.
        add_special_tokens: As in `Renderer.chat`.

    Raises:
        ApiError: A grammar is malformed or too large.
        RequestError: The template refuses the messages, or the tool format a schema.
    """
    if tools.forced and isinstance(wanted, StructuredOutputs):
        raise ApiError(
            "invalid_value",
            "structured_outputs gives text a form, but a forced tool call leaves none",
            "structured_outputs",
        )
    rendered = await served.renderer.chat(
        messages, tools.offered or None, variables, add_special_tokens
    )
    reasoning = served.reasoning_format
    tool = served.tool_format if tools.callable else None
    grammar = None
    if tools.constrained or wanted is not None:  # in a thread, as schemas may be long
        grammar = await served.renderer.run(lambda: _grammar(served, rendered, tools, wanted))
    more: dict[str, Any] = {} if grammar is None else {"grammar": grammar}
    params = make_params(**more)
    if grammar is not None and grammar.kind != "structural_tag" and not grammar.after:
        reasoning = tool = None  # all of the text is the form's, even where it looks like a mark
    if any(found is not None and found.keep_special_tokens for found in (reasoning, tool)):
        params = replace(params, skip_special_tokens=False)
    return Dialogue(rendered, params, tools, reasoning, tool)


def text_form(response_format: Any, structured: StructuredOutputs | None) -> Any:
    """Return what says how the text must look, if anything does.

    Raises:
        ApiError: Two fields do.
    """
    found = response_format if hasattr(response_format, "spec") else None
    if found is not None and structured is not None:
        raise ApiError(
            "invalid_value",
            "give either response_format or structured_outputs",
            "structured_outputs",
        )
    return found or structured


def _grammar(
    served: Served, rendered: Rendered, tools: ToolPlan, wanted: Any
) -> GrammarSpec | None:
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
