"""Further formats of reasoning between two markers, of which one marks answers, too.

Source: chat templates of Apertus, Command A Reasoning and MiniMax-M3.
"""

from hotshoe_parsers.thinking import Markers, marked

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
