"""What a format says of itself: whether a prompt opens a reasoning section."""

import pytest

from hotshoe.text.parsing import ParseContext, ParserFormat


def a_format(*begins: str) -> ParserFormat:
    return ParserFormat("x", NotImplemented, (), (), reasoning_begins=begins)


@pytest.mark.parametrize(
    ("begins", "prompt", "reasons"),
    [
        (("<think>",), "Hello <think>", True),
        (("<think>",), "Hello <think>\n \n", True),
        (("<think>", "<go>"), "Hello<go>", True),
        (("<think>",), "<think> Hello", False),
        (("<think>",), "", False),
        ((), "", False),
        ((), "Hello", False),
    ],
)
def test_the_end_of_a_prompt_opens_reasoning(begins, prompt: str, reasons: bool) -> None:
    assert a_format(*begins).reasons_after(prompt) is reasons


def test_a_context_offers_no_tools_unless_told() -> None:
    assert ParseContext().tools == {}
    assert ParseContext().prompt == ""
