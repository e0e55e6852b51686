"""Which backend serves a grammar, and what is said when none does."""

from dataclasses import replace

import pytest

from hotshoe.errors import ConfigError, RequestError
from hotshoe.grammar.backends import GrammarBackends
from hotshoe.types import GrammarSpec

REGEX = GrammarSpec.regex("1 2")


def backends(preferred: str = "auto", **made) -> GrammarBackends:
    return GrammarBackends({name: lambda b=b: b for name, b in made.items()}, preferred)


def test_the_first_that_does_not_refuse_serves(toy) -> None:
    other = type(toy)()
    other.refusal = lambda spec: None
    both = backends(b=toy, a=other)
    assert both.choose(REGEX).backend == "b"
    assert both.choose(GrammarSpec.json_object()).backend == "a"


def test_a_missing_library_passes_to_the_next(toy) -> None:
    absent = type(toy)(lacks="pip install it")
    assert backends(absent=absent, toy=toy).choose(REGEX).backend == "toy"


def test_a_defective_one_costs_no_more_than_itself(toy) -> None:
    def fail(*arguments: object) -> None:
        raise SystemExit(3)

    bad = type(toy)()
    bad.refusal = fail
    assert backends(bad=bad, toy=toy).choose(REGEX).backend == "toy"
    with pytest.raises(RequestError, match=r"^grammar: bad: it is defective: SystemExit: 3$"):
        backends(bad=bad).choose(REGEX)
    with pytest.raises(ConfigError, match="structured_output_backend bad: it is defective"):
        GrammarBackends({"bad": fail}, "bad")


def test_what_is_malformed_is_the_clients_fault(toy) -> None:
    def refuse(spec: GrammarSpec) -> None:
        raise RequestError("grammar: a bracket is open", "grammar")

    toy.refusal = refuse
    with pytest.raises(RequestError, match=r"^grammar: a bracket is open$"):
        backends(toy=toy, other=type(toy)()).choose(REGEX)


def test_a_choice_is_remembered(toy) -> None:
    asked: list[GrammarSpec] = []
    toy.refusal = asked.append
    both = backends(toy=toy)
    for after in ((), ((1,),), ((2,),)):
        assert both.choose(GrammarSpec.regex("1", after)).after == after
    assert len(asked) == 1
    for i in range(100):
        both.choose(GrammarSpec.regex(str(i)))
    assert len(both._chosen) <= 64


def test_each_reason_is_given(toy) -> None:
    absent = type(toy)(lacks="its library is not installed: pip install it")
    with pytest.raises(RequestError) as caught:
        backends(toy=toy, absent=absent).choose(GrammarSpec.json_object())
    assert str(caught.value) == (
        "grammar: toy: json_object is not supported; "
        "absent: its library is not installed: pip install it"
    )
    assert caught.value.field == "grammar"


def test_a_named_backend_alone_is_asked(toy) -> None:
    other = type(toy)()
    other.refusal = lambda spec: None
    spec = GrammarSpec("json_object", backend="toy")
    with pytest.raises(RequestError, match=r"toy: json_object is not supported$"):
        backends(toy=toy, other=other).choose(spec)
    with pytest.raises(RequestError, match=r"'toi' is unknown \(choices: toy, other\)"):
        backends(toy=toy, other=other).choose(GrammarSpec("json_object", backend="toi"))
    assert backends("other", toy=toy, other=other).choose(REGEX).backend == "other"


def test_start_up_finds_a_preferred_backend_that_cannot_be_used(toy) -> None:
    with pytest.raises(ConfigError, match=r"'toi' is unknown; did you mean toy.* \(.*\)$"):
        backends("toi", toy=toy)
    toy.lacks = "its library is not installed"
    with pytest.raises(ConfigError, match="structured_output_backend toy: its library"):
        backends("toy", toy=toy)


def test_without_backends_the_remedy_is_named() -> None:
    with pytest.raises(RequestError, match="install hotshoe-structured-output, which"):
        backends().choose(REGEX)
    with pytest.raises(ConfigError, match="install hotshoe-structured-output, which"):
        backends("toy")


def test_references_are_resolved_when_asked() -> None:
    lazy = GrammarBackends({"bad": "no.such.module:Thing"})
    with pytest.raises(RequestError, match="bad: it is defective: ModuleNotFoundError"):
        lazy.choose(REGEX)


def test_blanks_that_a_specification_leaves_open_are_the_engines(toy) -> None:
    made = GrammarBackends({"toy": lambda: toy}, max_blanks=3)
    assert made.choose(REGEX).max_blanks == 3
    assert made.choose(replace(REGEX, max_blanks=0)).max_blanks == 0


def test_a_schema_that_need_not_be_kept_may_become_any_object(toy) -> None:
    toy.refusal = lambda spec: None if spec.kind == "json_object" else "no schemas here"
    made, spec = backends(toy=toy), GrammarSpec.json_schema({"type": "object"}, [[1]])
    with pytest.raises(RequestError, match="no schemas here"):
        made.choose(spec)
    for _ in range(2):
        found = made.choose(replace(spec, strict=False))
        assert (found.kind, found.value, found.after) == ("json_object", "", ((1,),))
    toy.refusal = lambda spec: None
    assert backends(toy=toy).choose(replace(spec, strict=False)).kind == "json_schema"
