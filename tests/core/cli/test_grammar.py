"""Flags for the form of a text."""

import argparse
from pathlib import Path

import pytest

from hotshoe.cli.grammar import FLAGS, add_grammar_flags, grammar_spec
from hotshoe.cli.parser import Parser
from hotshoe.errors import ConfigError, RequestError
from hotshoe.types import GrammarSpec


def parse(*words: str) -> argparse.Namespace:
    parser = Parser("test", "test")
    add_grammar_flags(parser)
    return parser.parse(words)


@pytest.mark.parametrize(
    ("words", "spec"),
    [
        ((), None),
        (("--json-schema", "{}"), GrammarSpec.json_schema({})),
        (("--json-object",), GrammarSpec.json_object()),
        (("--regex", "a+"), GrammarSpec.regex("a+")),
        (("--choice", "a,b", "--choice", "c"), GrammarSpec.choice(["a,b", "c"])),
        (("--grammar", 'root ::= "a"'), GrammarSpec.ebnf('root ::= "a"')),
        (("--structural-tag", "{}"), GrammarSpec.structural_tag("{}")),
    ],
)
def test_flags_become_a_grammar(words: tuple[str, ...], spec: GrammarSpec | None) -> None:
    assert grammar_spec(parse(*words)) == spec


@pytest.mark.parametrize("name", FLAGS)
def test_a_value_may_lie_in_a_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "value"
    path.write_text("é")
    spec = grammar_spec(parse(f"--{name.replace('_', '-')}", f"@{path}"))
    assert spec is not None
    assert spec.value == "é"


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read no/such"):
        grammar_spec(parse("--regex", "@no/such"))
    with pytest.raises(RequestError, match="no empty one"):
        grammar_spec(parse("--choice", ""))
    with pytest.raises(ConfigError, match="not allowed with"):
        parse("--regex", "a", "--json-object")
