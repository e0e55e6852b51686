"""From a conversation to what the engine runs, and from the engine's text to events.

Shared by the chat and the responses endpoints, which only word requests and answers differently.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

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
from hotshoe.types import FinishReason, SamplingParams
from hotshoe_server.errors import ApiError
from hotshoe_server.forms import PROMPT_TAIL_CHARS, grammar_of
from hotshoe_server.renderer import Rendered
from hotshoe_server.schemas.grammar import StructuredOutputs
from hotshoe_server.state import Served


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """What a request may do with tools.

    Attributes:
        offered: The tools as the template shows them.
        callable: Schemas of the arguments of those that may be called, by name.
        forced: Whether a call must come.
        parallel: Whether several may.
        strict: Names of those whose arguments must follow their schema even where no call is
            forced.
    """

    offered: Sequence[Mapping[str, Any]] = ()
    callable: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    forced: bool = False
    parallel: bool = True
    strict: frozenset[str] = frozenset()

    @property
    def kept(self) -> Mapping[str, Mapping[str, Any] | None]:
        """Schemas by name, None for a tool whose arguments need not follow theirs."""
        return {n: s if self.forced or n in self.strict else None for n, s in self.callable.items()}

    @property
    def constrained(self) -> bool:
        """Whether a grammar is needed."""
        return self.forced or bool(self.strict)


NO_TOOLS = ToolPlan()


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
        grammar = await served.renderer.run(lambda: grammar_of(served, rendered, tools, wanted))
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
