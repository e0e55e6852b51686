"""Further formats of reasoning between two markers, of which two mark answers, too.

Source: chat templates of Apertus, Command A Reasoning, MiniMax-M3, Solar Open and
Solar Open 2; Kimi K3's description of its encoding.
"""

from collections.abc import Callable

from hotshoe.text.stop import StopAutomaton
from hotshoe_parsers.kimi_k3 import MARKS
from hotshoe_parsers.machine import Reader, Steps, Take
from hotshoe_parsers.thinking import Markers, marked

#: Solar Open's, between the parts of a message.
_SOLAR_MARKS = ("<|begin|>assistant", "<|content|>")


def _without(marks: tuple[str, ...]) -> Callable[[Reader, Take], Steps[None]]:
    """Return what reads all but marks around an answer and behind a message."""
    automaton = StopAutomaton(marks)

    def read(reader: Reader, take: Take) -> Steps[None]:
        while (yield from reader.until(automaton, take)):
            pass

    return read


APERTUS = marked(
    "apertus",
    Markers(("<|inner_prefix|>",), ("<|inner_suffix|>",)),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    special=True,
)
COHERE = marked(
    "cohere_command3",
    Markers(
        ("<|START_THINKING|>",),
        ("<|END_THINKING|>",),
        answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    special=True,
)
MINIMAX = marked(
    "minimax_m3",
    Markers(("<mm:think>",), ("</mm:think>",)),
    ("<mm:think>", "</mm:think>"),
    special=True,
)
KIMI_K3 = marked(
    "kimi_k3",
    Markers(
        ("<|open|>think<|sep|>",), ("<|close|>think<|sep|>",), rest=_without(MARKS), dropped=MARKS
    ),
    ("<|open|>", "<|close|>", "<|sep|>"),
    special=True,
)
SOLAR_OPEN = marked(
    "solar_open",
    Markers(
        ("<|think|>",),
        ("<|end|>",),
        rest=_without((*_SOLAR_MARKS, "<|end|>")),
        dropped=_SOLAR_MARKS,
    ),
    ("<|think|>", "<|content|>"),
    special=True,
)
SOLAR = marked(
    "solar_open2",
    Markers(("<|think:start|>",), ("<|think:end|>",)),
    ("<|think:start|>", "<|think:end|>"),
    special=True,
)
