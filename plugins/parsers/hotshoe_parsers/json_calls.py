"""Formats that write calls as JSON objects between marks; one table, one parser.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

Some write a list of such objects, some have no mark at the end, and one needs no mark where a
response begins.

Sources: model cards and chat templates of Hermes-2-Pro-Mistral-7B, Qwen2.5, Qwen3, Granite 3 and 4,
ERNIE-4.5-21B-A3B-Thinking, LongCat-Flash-Chat, Hunyuan-A13B-Instruct, Jamba-1.5, InternLM2.5,
Phi-4-mini-instruct, xLAM-2, Command A Reasoning, Apertus, GigaChat3 and
granite-20b-functioncalling.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from hotshoe.text.parsing import CallGrammar, ParseContext, ParserFormat, ResponseParser
from hotshoe_parsers.calls import (
    Kept,
    call_list,
    calls_in_text,
    end_call,
    json_call,
    json_tags,
    keyed_call,
    leading_calls,
)
from hotshoe_parsers.machine import Machine, Reader, Steps
from hotshoe_parsers.writer import Writer


@dataclass(frozen=True, slots=True)
class Marks:
    """How one format writes calls.

    Attributes:
        name: Of the format.
        begins: Each of them announces calls.
        end: Behind them, if anything is.
        listed: Calls are a list in brackets.
        leads: A list without a mark counts where a response begins.
        key, name_key: Keys of the arguments and of the tool's name, as a grammar writes them; None
            for the name where it is the only key itself.
        gap: What a grammar writes between marks and calls.
        template_marks: See `ParserFormat`.
    """

    name: str
    begins: tuple[str, ...]
    end: str = ""
    listed: bool = False
    leads: bool = False
    key: str = "arguments"
    name_key: str | None = "name"
    gap: str = ""
    template_marks: tuple[str, ...] = ()


def _open(marks: Marks, context: ParseContext) -> ResponseParser:
    def program(reader: Reader, writer: Writer) -> Steps[None]:
        def one() -> Steps[None]:
            read_call = keyed_call if marks.name_key is None else json_call
            yield from read_call(reader, writer, context.tools)

        def read(marker: str = "") -> Steps[None]:
            yield from reader.space()
            yield from call_list(reader, writer, one) if marks.listed else one()
            if marker and marks.end:
                yield from reader.close(marks.end)
            if marks.listed:
                writer.trim()
            else:
                end_call(reader, writer)

        if marks.leads:
            yield from leading_calls(reader, writer, "[", read)
        yield from calls_in_text(reader, writer, marks.begins, read)

    return Machine(program)


def _calls(marks: Marks, tools: Kept) -> CallGrammar:
    begins, gap = marks.begins, marks.gap
    # Behind a list that may have no mark, nothing follows, and then the end may be missing.
    end = gap + marks.end if marks.end and not marks.leads else ""
    if not marks.listed:
        tags = json_tags(tools, begins[0] + gap, end, marks.key, marks.name_key)
        return CallGrammar(tags, triggers=begins, separator="\n")
    openings = tuple(f"{begin}{gap}[" for begin in begins)
    return CallGrammar(
        json_tags(tools, key=marks.key, name_key=marks.name_key),
        triggers=begins,
        leading=("[",) if marks.leads else (),
        openings=("[", *openings) if marks.leads else openings,
        separator=", ",
        closing=f"]{end}",
    )


#: What GigaChat 3 writes before its one call.
GIGA = "function call<|role_sep|>\n"
TABLE = (
    Marks(
        "apertus",
        ("<|tools_prefix|>",),
        "<|tools_suffix|>",
        listed=True,
        name_key=None,
        template_marks=("<|tools_prefix|>", "<|tools_suffix|>"),
    ),
    Marks(
        "cohere_command3",
        ("<|START_ACTION|>",),
        "<|END_ACTION|>",
        listed=True,
        key="parameters",
        name_key="tool_name",
        gap="\n",
        template_marks=("<|START_ACTION|>", "<|END_ACTION|>"),
    ),
    Marks(
        "longcat",
        ("<longcat_tool_call>",),
        "</longcat_tool_call>",
        gap="\n",
        template_marks=("<longcat_tool_call>", "</longcat_tool_call>"),
    ),
    Marks(
        "hermes",
        ("<tool_call>",),
        "</tool_call>",
        gap="\n",
        template_marks=("<tool_call>", '"name', '"arguments'),
    ),
    Marks(
        "granite",
        ("<|tool_call|>", "<tool_call>"),
        listed=True,
        template_marks=("<|tool_call|>", "<|start_of_role|>"),
    ),
    Marks(
        "granite_20b_fc",
        ("<function_call>",),
        gap=" ",
        template_marks=("<function_call>",),
    ),
    Marks(
        "gigachat3",
        (f"<|message_sep|>\n\n{GIGA}", GIGA),
        template_marks=("<|message_sep|>", "<|role_sep|>", "function call"),
    ),
    Marks(
        "hunyuan_a13b",
        ("<tool_calls>",),
        "</tool_calls>",
        listed=True,
        template_marks=("<tool_calls>", "<|extra_0|>"),
    ),
    Marks(
        "jamba",
        ("<tool_calls>",),
        "</tool_calls>",
        listed=True,
        gap="\n",
        template_marks=("<tool_calls>", "<|bom|>"),
    ),
    Marks(
        "internlm",
        ("<|action_start|><|plugin|>",),
        "<|action_end|>",
        key="parameters",
        gap="\n",
        template_marks=("<|action_start|>", "<|plugin|>"),
    ),
    Marks(
        "phi4_mini_json",
        ("functools",),
        listed=True,
        template_marks=("<|tool|>", "<|/tool|>", "<|assistant|>"),
    ),
    Marks(
        "xlam",
        ("<tool_call>",),
        "</tool_call>",
        listed=True,
        leads=True,
        template_marks=("xLAM", "tool_calls"),
    ),
)
FORMATS = {
    marks.name: ParserFormat(
        marks.name,
        partial(_open, marks),
        markers=(*marks.begins, marks.end) if marks.end else marks.begins,
        template_marks=marks.template_marks,
        keep_special_tokens=True,  # which the marks are in some tokenizers
        calls=partial(_calls, marks),
    )
    for marks in TABLE
}
APERTUS, COHERE, LONGCAT, HERMES, GRANITE, GRANITE_20B, GIGACHAT, *_rest = FORMATS.values()
HUNYUAN, JAMBA, INTERNLM, PHI4, XLAM = _rest
