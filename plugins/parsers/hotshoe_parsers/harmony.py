"""The format of gpt-oss: messages on channels, some of them addressed to a tool.

    <|channel|>analysis<|message|>Thinking.<|end|><|start|>assistant<|channel|>commentary
     to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>

Channel "analysis" is reasoning; "final", and "commentary" without a recipient, are content. The
recipient stands behind the role or behind the channel. What is in no message is content.

Source: OpenAI's harmony response format, as published with gpt-oss.
"""

from __future__ import annotations

from hotshoe.text.parsing import CallGrammar, CallTag, ParseContext, ParserFormat, ResponseParser
from hotshoe.text.stop import StopAutomaton
from hotshoe_parsers.calls import Kept, Tools, arguments, attempt, end_call, known
from hotshoe_parsers.machine import Machine, Malformed, Reader, Steps
from hotshoe_parsers.writer import Writer

_START, _CHANNEL, _CONSTRAIN = "<|start|>", "<|channel|>", "<|constrain|>"
_MESSAGE, _END, _CALL, _RETURN = "<|message|>", "<|end|>", "<|call|>", "<|return|>"
_RECIPIENT, _FUNCTIONS = "to=", "functions."
_BEGINS = (_START, _CHANNEL)
_ENDS = (_END, _CALL, _RETURN)
#: Behind a marker of a header: what the first word must be, and how many words there may be at
#: most, without a recipient. A type, such as "json", stands behind the channel.
_WORDS: dict[str, tuple[tuple[str, ...], int]] = {
    _START: (("assistant",), 1),
    _RECIPIENT: ((), 0),
    _CHANNEL: (("analysis", "commentary", "final"), 2),
    _CONSTRAIN: ((), 2),
}
_BEFORE_MESSAGE = StopAutomaton(_BEGINS)
_IN_MESSAGE = StopAutomaton((*_ENDS, *_BEGINS))


def _open(context: ParseContext) -> ResponseParser:
    def program(reader: Reader, writer: Writer) -> Steps[None]:
        begin = ""
        reader.mark()
        if (yield from reader.literal(f" {_RECIPIENT}")):  # the prompt ends with the role
            begin = _RECIPIENT
        while begin or (begin := (yield from reader.until(_BEFORE_MESSAGE, writer.content))):
            if begin in _BEGINS:
                reader.mark(begin)
            begin = yield from _message(reader, writer, context.tools, begin)

    machine = Machine(program)
    _, start, header = context.prompt.rpartition(_START)
    if start and header.endswith(_MESSAGE):  # the prompt has begun a message
        machine.begin(start + header)
    return machine


def _message(reader: Reader, writer: Writer, tools: Tools, begin: str) -> Steps[str]:
    """Read a message; return the marker that begins the next one, if this one does not end."""
    found: list[str] = []

    def steps() -> Steps[None]:
        channel, recipient = yield from _header(reader, begin)
        if recipient:
            yield from _call(reader, writer, tools, recipient)
        else:
            reader.forget()
            take = writer.reasoning if channel == "analysis" else writer.content
            found.append((yield from reader.until(_IN_MESSAGE, take)))

    yield from attempt(reader, writer, steps())
    return found[0] if found and found[0] in _BEGINS else ""


def _header(reader: Reader, begin: str) -> Steps[tuple[str, str]]:
    """Read a message's header from behind its first marker; return channel and recipient."""
    channel = recipient = ""
    marker = begin
    while marker != _MESSAGE:
        text = yield from reader.word("<")
        words = (_RECIPIENT + text if marker == _RECIPIENT else text).split()
        plain = [word for word in words if not word.startswith(_RECIPIENT)]
        named = [word.removeprefix(_RECIPIENT) for word in words if word.startswith(_RECIPIENT)]
        _check_words(marker, plain, [recipient, *named] if recipient else named)
        channel = plain[0] if marker == _CHANNEL else channel
        recipient = named[0] if named else recipient
        marker = yield from _next_marker(reader)
    return channel, recipient


def _check_words(marker: str, plain: list[str], recipients: list[str]) -> None:
    """Refuse what may not stand behind a marker of a header."""
    first, most = _WORDS[marker]
    if (
        (first and plain[:1] not in [[word] for word in first])
        or len(plain) > most
        or not all(word.isalnum() for word in plain)
        or len(recipients) > 1
        or "" in recipients
    ):
        raise Malformed(f"the header of a message has a fault behind {marker!r}")


def _next_marker(reader: Reader) -> Steps[str]:
    for candidate in (_CHANNEL, _CONSTRAIN, _MESSAGE):
        if (yield from reader.literal(candidate)):
            return candidate
    raise Malformed(f"{_MESSAGE!r} is missing")


def _call(reader: Reader, writer: Writer, tools: Tools, recipient: str) -> Steps[None]:
    writer.start(known(recipient.removeprefix(_FUNCTIONS), tools))
    yield from reader.space()
    yield from arguments(reader, writer)
    yield from reader.space()
    for end in _ENDS:
        if (yield from reader.literal(end)):
            break
    else:
        if (yield from reader.peek()):
            raise Malformed(f"{_CALL!r} is missing")
    end_call(reader, writer)


def _calls(tools: Kept) -> CallGrammar:
    start, commentary, recipient = f"{_START}assistant", f"{_CHANNEL}commentary", f" {_RECIPIENT}"
    analysis, answer = (f"{_CHANNEL}{name}{_MESSAGE}" for name in ("analysis", "final"))
    headers = [
        f"{commentary}{recipient}{_FUNCTIONS}{{}} {_CONSTRAIN}json{_MESSAGE}",
        f"{recipient}{_FUNCTIONS}{{}}{commentary} {_CONSTRAIN}json{_MESSAGE}",
    ]
    # No end mark: it ends the response, so that engines take it for no text.
    tags = [CallTag(n, header.format(n), s, "") for n, s in tools.items() for header in headers]
    return CallGrammar(
        tuple(tags),
        triggers=(f"{commentary}{recipient}",),
        leading=(recipient,),
        separator=None,
        marks=(analysis, answer, f"{commentary}{_MESSAGE}", _END, start),
        reasoning=(analysis, f"{_END}{start}"),
        answer=answer,
    )


FORMAT = ParserFormat(
    "harmony",
    _open,
    markers=(*_BEGINS, _CONSTRAIN, _MESSAGE, *_ENDS),
    template_marks=(f"{_START}assistant", f"{_CHANNEL}analysis"),
    keep_special_tokens=True,
    calls=_calls,
    reasoning_begins=(f"{_START}assistant", f"{_CHANNEL}analysis{_MESSAGE}"),
    reasoning_ends=(f"{_CHANNEL}final{_MESSAGE}",),
)
