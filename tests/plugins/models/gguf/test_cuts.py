"""How text is cut: scripts by rule, and that nothing of a text is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split

from hotshoe_models.gguf.cuts import CUTS, Cut

#: Scripts, marks, and a sign that leads a word.
SCRIPTS = {
    "glm4": ["東京タワー한국", " café", "\u0301", " .", "h", "\r\n", "ЖЖ"],
    "qwen35": ["東京タワー한국", " café\u0301", " .", "h", "\r\n", "ЖЖ"],
    "minimax-m2": ["東京タワー한국", " café\u0301", " .", "h", "\r\n", "ЖЖ"],
    "kimi-k2": ["東京", "タワー한국", " café\u0301", " .", "h", "\r\n", "ЖЖ"],
    "deepseek-v3": ["東京タワー", "한국", " café\u0301", " .", "h", "\r\n", "ЖЖ"],
    "deepseek-llm": ["東京タワー한국", " caf", "é", "\u0301", " .", "h", "\r", "\n", "ЖЖ"],
    "deepseek-coder": ["東京タワー한국", " café", "\u0301", " .", "h", "\r", "\n", "ЖЖ"],
    "youtu": ["東京タワー", "한국", " café\u0301", " .", "h", "\r\n", "ЖЖ"],
    "ufakzeka": ["東京タワー한국", " café", "\u0301", " .", "h", "\r\n", "ЖЖ"],
}


def pieces(cut: Cut, text: str) -> list[str]:
    steps = Sequence([Split(Regex(each), "isolated") for each in cut.patterns])
    return [piece for piece, _ in steps.pre_tokenize_str(text)]


@pytest.mark.parametrize("pre", SCRIPTS)
def test_how_scripts_are_cut(pre: str) -> None:
    assert pieces(CUTS[pre], "東京タワー한국 café\u0301 .h\r\nЖЖ") == SCRIPTS[pre]


def test_a_letter_of_deepseek_s_list_is_cut_from_the_signs_behind_it() -> None:
    """The rule's signs go from ":" to "~", so they hold the letters of ASCII, too."""
    assert pieces(CUTS["deepseek-llm"], " Straße") == [" Stra", "ß", "e"]


@given(
    st.text(
        st.one_of(st.sampled_from(" \n\r\t'sS19²Ⅷ.#aAÉß東タ한\u0301"), st.characters(codec="utf-8"))
    )
)
def test_pieces_are_the_text(text: str) -> None:
    for cut in {cut.patterns: cut for cut in CUTS.values()}.values():
        assert "".join(pieces(cut, text)) == text
