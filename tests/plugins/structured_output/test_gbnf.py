"""Grammars as llama.cpp writes them: every text of theirs, and no other."""

from __future__ import annotations

import pytest

from hotshoe.errors import RequestError
from hotshoe.types import GrammarSpec
from hotshoe_structured_output.gbnf import is_lark, to_lark

GRAMMARS = {
    "a star of a star": ('root ::= ("a"*)*', ["", "a", "aaaa"], ["b"]),
    "counts of counts": ('root ::= ("a"{1,2}){1,2}', ["a", "aaaa"], ["", "aaaaa"]),
    "a question of a star": ('root ::= ("a"*)? "b"', ["b", "aab"], ["", "a"]),
    "a long code": (r'root ::= "\U0001F600"', ["😀"], ["1F600"]),
    "long codes in a class": (r"root ::= [\U0001F600-\U0001F64F]", ["😀", "🙂"], ["a"]),
    "short codes": (r'root ::= "\u0041\x42" "1"', ["AB1"], ["41B"]),
    "codes of special characters": (
        r'root ::= "\u0022\u005c" [\u005d\u002d]',
        ['"\\]', '"\\-'],
        [],
    ),
    "codes of controls": (r'root ::= "\u000a" [\u0009]', ["\n\t"], ["\n"]),
    "operators in a class": (r"root ::= [a&&b~~]+", ["a&b~"], ["c"]),
    "a rule named start": ('root ::= start\nstart ::= "a" | start "b"', ["a", "ab"], ["b"]),
    "names that differ by dashes": ('root ::= a-b a_b\na-b ::= "1"\na_b ::= "2"', ["12"], ["21"]),
    "names that differ by case": ('root ::= Ab aB\nAb ::= "1"\naB ::= root? "2"', ["12"], ["11"]),
    "escapes": (r'root ::= "\"\\\n" [\]\[\\] # "x', ['"\\\n]', '"\\\n\\'], ['"\\\nx']),
    "a comment with a quote": ('# it\'s "odd\nroot ::= "a" # [\n', ["a"], ["b"]),
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_texts_of_a_grammar(llguidance_bench, name: str) -> None:
    grammar, texts, others = GRAMMARS[name]
    compiled = llguidance_bench.compile(GrammarSpec.ebnf(grammar))
    assert [t for t in texts if not llguidance_bench.accepts(compiled, t)] == []
    assert [t for t in others if llguidance_bench.accepts(compiled, t)] == []


@pytest.mark.parametrize(
    ("grammar", "cause"),
    [
        ('start ::= "a"', "no rule 'root'"),
        ("root ::= nope", "rule 'nope' is not there"),
        (r'root ::= "\U00110000"', "no character"),
        (r'root ::= "\ud800"', "no character"),
        ('root ::= "a', "Unexpected end"),
        ("root ::= [\\", "ends within an escape"),
        ("root ::= " + "(" * 5000, "recursion"),
    ],
)
def test_malformed_grammars_are_refused(grammar: str, cause: str) -> None:
    with pytest.raises(RequestError, match=f"^grammar: the grammar is malformed: [^:]*{cause}"):
        to_lark(grammar)


def test_which_grammars_are_lark() -> None:
    assert is_lark('start: "a"') and is_lark("%llguidance {}\nx: y")
    assert not is_lark('root ::= start\nstart ::= "a"')
