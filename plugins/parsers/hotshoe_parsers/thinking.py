"""Formats of reasoning that stands at the beginning of a response, between two markers.

The opening marker may be the end of the prompt, or begin the response; one that comes later is
content, since answers may speak of markers. The closing marker ends reasoning for good.

Source: chat templates of Qwen3, DeepSeek-R1 and V3.1, Granite 3.2 and 3.3, Magistral,
Gemma 4, Hunyuan-A13B, Seed-OSS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hotshoe.text.parsing import ParseContext, ParserFormat, ResponseParser
from hotshoe.text.stop import StopAutomaton
from hotshoe_parsers.machine import Machine, Reader, Steps, Take
from hotshoe_parsers.writer import Writer


@dataclass(frozen=True, slots=True)
class Markers:
    """The markers of a format.

    Attributes:
        begins: Each may open the reasoning.
        ends: Each may close it.
        answer, rest, dropped: Marks around the answer, what reads the rest, and what that omits.
        prompts: Ends of prompts behind which a response begins with reasoning.
    """

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    answer: tuple[str, str] | None = None
    prompts: tuple[str, ...] = ()
    rest: Callable[[Reader, Take], Steps[None]] = Reader.rest
    dropped: tuple[str, ...] = ()


def marked(
    name: str, markers: Markers, template_marks: tuple[str, ...], special: bool = False
) -> ParserFormat:
    ends = StopAutomaton(markers.ends)

    def open_parser(context: ParseContext) -> ResponseParser:
        inside = found.reasons_after(context.prompt)
        return Machine(lambda reader, writer: _read(reader, writer, markers, ends, inside))

    found = ParserFormat(
        name,
        open_parser,
        markers=(*markers.begins, *markers.ends, *(markers.answer or ()), *markers.dropped),
        template_marks=template_marks,
        keep_special_tokens=special,
        reasoning_begins=markers.prompts or markers.begins,
        reasoning_ends=markers.ends,
    )
    return found


def _read(
    reader: Reader, writer: Writer, markers: Markers, ends: StopAutomaton, inside: bool
) -> Steps[None]:
    reader.mark()
    yield from reader.space()
    opened = False
    for begin in markers.begins:
        opened = opened or (yield from reader.literal(begin))
    before = reader.since_mark()
    reader.forget()
    if not inside and not opened:
        writer.content(before)
    else:
        writer.trim()
        if (yield from reader.until(ends, writer.reasoning)):
            writer.trim()
    if markers.answer is not None:
        yield from _answer(reader, writer, *markers.answer)
    yield from markers.rest(reader, writer.content)


def _answer(reader: Reader, writer: Writer, begin: str, end: str) -> Steps[None]:
    """Read an answer between marks, if the first of them comes."""
    yield from reader.space()
    if (yield from reader.literal(begin)) and (
        yield from reader.until(StopAutomaton((end,)), writer.content)
    ):
        writer.trim()


_THINK = Markers(("<think>",), ("</think>",))

QWEN3 = marked("qwen3", _THINK, ("</think>",))
#: Older templates leave the opening marker to the model, which may leave it out.
DEEPSEEK_R1 = marked(
    "deepseek_r1",
    Markers(("<think>",), ("</think>",), prompts=("<think>", "<｜Assistant｜>")),
    ("</think>", "<｜Assistant｜>"),
)
GEMMA4 = marked(
    "gemma4",
    Markers(("<|channel>thought",), ("<channel|>",)),
    ("<|channel>", "<channel|>"),
    special=True,
)
GRANITE = marked(
    "granite",
    Markers(
        ("<think>", "Here is my thought process:", "Here's my thought process:"),
        ("</think>", "Here is my response:", "Here's my response:"),
        answer=("<response>", "</response>"),
    ),
    ("<|start_of_role|>", "thought"),
)
HUNYUAN = marked(
    "hunyuan_a13b",
    Markers(("<think>",), ("</think>",), answer=("<answer>", "</answer>")),
    ("</think>", "<|extra_0|>"),
)
MISTRAL = marked("mistral", Markers(("[THINK]",), ("[/THINK]",)), ("[THINK]",), special=True)
SEED_OSS = marked(
    "seed_oss",
    Markers(("<seed:think>",), ("</seed:think>",)),
    ("<seed:think>", "</seed:think>"),
    special=True,
)
