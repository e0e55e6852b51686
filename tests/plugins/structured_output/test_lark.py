"""Grammars that are written for llguidance: sections, special tokens, and whose options count."""

import pytest

from hotshoe.errors import RequestError
from hotshoe.types import GrammarSpec
from hotshoe_structured_output import lark

DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}


def tag(**more) -> GrammarSpec:
    return GrammarSpec.structural_tag(
        {
            "structures": [
                {"begin": "<a>", "schema": DIGIT, "end": "</a>"},
                {"begin": "<b>", "schema": {"const": "x"}, "end": ""},
            ],
            "triggers": ["<a", "<b"],
            **more,
        }
    )


def test_sections_with_parts(llguidance_bench) -> None:
    accepts, compiled = llguidance_bench.accepts, llguidance_bench.compile
    parts = {"opening": "[", "separator": ", ", "closing": "]", "triggers": ["["]}
    grammar = compiled(tag(**parts, at_least_one=True, stop_after_first=True))
    for text in ("[<a>1</a>]", "[<a>1</a>, <a>2</a>]", '[<b>"x", <a>3</a>]'):
        assert accepts(grammar, text), text
    for text in ("", "[]", "[<a>1</a>", "[<a>1</a><a>2</a>]", "[<a>1</a>, ]", "[<a>12</a>]", "x"):
        assert not accepts(grammar, text), text
    free = compiled(tag(**parts))
    for text in ("", "x", 'x [<a>1</a>] y [<b>"x"] z'):
        assert accepts(free, text), text
    for text in ("x [", "x [y]", "[<a>1</a>] ["):
        assert not accepts(free, text), text


def test_marks_that_are_tokens_are_not_spelt_out(llguidance_bench) -> None:
    """A parser reads text, so that it would take them for marks all the same."""
    bench, mark = llguidance_bench, "<|im_start|>"
    matcher = bench.compile(tag(opening=mark, triggers=[mark])).matcher()
    *spelt, last = [t for char in mark for t in bench.encode(char)]
    for token_id in spelt:
        assert token_id in bench.allowed(matcher) and matcher.accept(token_id)
    assert last not in bench.allowed(matcher)


def test_each_trigger_opens_its_own(llguidance_bench) -> None:
    accepts, grammar = llguidance_bench.accepts, llguidance_bench.compile(tag())
    for text in ("<a>1</a>", 'so <b>"x" and <a>2</a>', "< a"):
        assert accepts(grammar, text), text
    for text in ("<b>1", '<a>"x"</a>', "<a", "<b>"):
        assert not accepts(grammar, text), text


def test_special_tokens_in_tags(llguidance_bench) -> None:
    bench = llguidance_bench
    begin, end = "<|im_start|>", "<|endoftext|>"
    spec = GrammarSpec.structural_tag(
        {
            "structures": [{"begin": f"{begin}call ", "schema": DIGIT, "end": begin}],
            "triggers": [begin],
            "stop_after_first": True,
        }
    )
    grammar = bench.compile(spec)
    for text in ("free", f"{begin}call 7{begin}", f"free {begin}call 7{begin}"):
        assert bench.accepts(grammar, text), text
    for text in (f"{begin}7", f"{begin}call 7{end}", f"{begin}call 77{begin}", end):
        assert not bench.accepts(grammar, text), text


def test_a_trigger_is_text_or_begins_with_a_special_token(llguidance_bench) -> None:
    bench = llguidance_bench
    structure = {"begin": "x<|im_start|>y", "schema": DIGIT, "end": ""}
    spec = GrammarSpec.structural_tag({"structures": [structure], "triggers": ["x<|im_start|>"]})
    with pytest.raises(RequestError, match="plain text, or begin with a special token"):
        bench.compile(spec)
    structure["begin"] = "<|im_start|>xy"
    spec = GrammarSpec.structural_tag({"structures": [structure], "triggers": ["<|im_start|>x"]})
    grammar = bench.compile(spec)
    for text in ("x", "x<|im_start|>xy3", "<|im_start|>xy1 x"):
        assert bench.accepts(grammar, text), text
    for text in ("<|im_start|>", "<|im_start|>y", "<|im_start|>xz"):
        assert not bench.accepts(grammar, text), text


def test_marks_and_what_leads(llguidance_bench) -> None:
    mark = "<|im_start|>"
    grammar = llguidance_bench.compile(
        tag(leading=["to "], marks=[f"{mark}user "], stop_after_first=True, opening=["to ", ""])
    )
    for text in ("", "x to <", "to <a>1</a>", f"hi{mark}user to <a>1</a>", f"{mark}user <a>2</a>"):
        assert llguidance_bench.accepts(grammar, text), text
    for text in ("to me", "  to me", f"{mark}user to me", mark, f"{mark}you", "to <a>x</a>"):
        assert not llguidance_bench.accepts(grammar, text), text


def test_a_preface(llguidance_bench) -> None:
    for begin, end in (("<|im_start|>", "<|im_start|>so "), ("(", ")")):
        grammar = llguidance_bench.compile(
            tag(preface=[begin, end], at_least_one=True, stop_after_first=True)
        )
        thought = f"{begin}Hm <a>{end}"
        for text in ("<a>1</a>", f"{thought}<a>1</a>", f'{thought}{thought}<b>"x"'):
            assert llguidance_bench.accepts(grammar, text), text
        for text in ("", thought, f"{begin}<a>1</a>", "hi<a>1</a>", f"{thought}<a>x</a>"):
            assert not llguidance_bench.accepts(grammar, text), text


def test_options_are_ours() -> None:
    assert lark.grammar("%llguidance {}\nstart: A").endswith("}\nstart: A")
    for text in ("%llguidance {}\n%llguidance {}\nstart: A", '%llguidance {"x": 1}\nstart: A'):
        with pytest.raises(RequestError, match="may not contain %llguidance"):
            lark.grammar(text)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('start: %json {"allOf": []}', "%json"),
        ('start: %lark { start: "a" }', "%lark"),
        ("start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(5000)), "1000 rules"),
        ("start: A\nA: " + " & ".join(["/a+/"] * 10), "8 intersections"),
    ],
)
def test_what_a_library_cannot_bear_is_refused(text: str, cause: str) -> None:
    with pytest.raises(RequestError, match=cause):
        lark.grammar(text)


def test_the_longest_chain_of_rules_is_compiled(llguidance_bench) -> None:
    links = range(lark.MAX_RULES - 2)
    rules = [f'r{i}: r{i + 1} "a"' for i in links] + [f'r{len(links)}: "b"']
    grammar = llguidance_bench.compile(GrammarSpec.ebnf("start: r0\n" + "\n".join(rules)))
    assert llguidance_bench.accepts(grammar, "b" + "a" * len(links))


def test_what_must_come_next_may_be_cut_anyhow(llguidance_bench) -> None:
    bench = llguidance_bench
    grammar = bench.compile(GrammarSpec.choice(["name"]))
    found = {bench.vocabulary.tokens[i] for i in bench.allowed(grammar.matcher())}
    assert {b"n", b"na", b"name"} <= found
