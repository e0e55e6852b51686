"""Which models a server has at its start, and with which options."""

import json
from fractions import Fraction

import pytest

from hotshoe.config import EngineConfig
from hotshoe.errors import CheckpointError, ConfigError
from hotshoe_server.config import ServerConfig
from hotshoe_server.plans import make_plans, model_name, one_of, rewrite_models

ENGINE = EngineConfig(max_num_seqs=7)
MODEL_C = '{"C": {"model": "/c"}}'
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3}


def plans(has_model: bool = True, **options: object):
    return make_plans(ENGINE, ServerConfig(**options), has_model)


def test_one_model_stands_as_it_is() -> None:
    [plan] = plans(served_model_name=["a", "b", "a"])
    assert plan.engine == ENGINE
    assert plan.names == ["a", "b"]


def test_models_beside_it_have_their_own_options() -> None:
    own = {"model": "/x", "max-num-seqs": "2k", "tool_call_parser": "none"}
    own["served_model_name"] = "second"
    first, second, third = plans(models={"two": own, "three": "demo"}, tool_call_parser="hermes")
    assert (first.names, second.names, third.names) == (["demo"], ["two", "second"], ["three"])
    assert [p.engine.model for p in (first, second, third)] == ["demo", "/x", "demo"]
    assert [p.engine.max_num_seqs for p in (first, second, third)] == [7, 2000, 7]
    parsers = [p.config.tool_call_parser for p in (first, second, third)]
    assert parsers == ["hermes", "none", "hermes"]


@pytest.mark.parametrize("given", ["mimo_mtp", {"method": "mimo_mtp", "max_model_len": 9}])
def test_drafts_of_one_model_may_have_names_of_vllm(given: object, caplog) -> None:
    _, second = plans(models={"two": {"model": "demo", "speculative_config": given}})
    assert second.engine.speculative_config == {"method": "mtp"}
    assert ("max_model_len of vLLM has no effect" in caplog.text) == isinstance(given, dict)


def test_without_a_model_of_its_own_the_server_has_those_by_name() -> None:
    assert [p.names for p in plans(False, models={"two": "demo"})] == [["two"]]
    assert [p.names for p in plans(False)] == [["demo"]]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({}, "models.two: name the model"),
        (3, "models.two: name the model"),
        ({"model": 3}, "models.two: model must be str"),
        ({"model": "x", "port": 1}, "models.two: unknown option port"),
        ({"model": "x", "max_num_seq": 1}, "did you mean max_num_seqs"),
        ({"model": "x", "max_num_seqs": 0}, "models.two: max_num_seqs must be between"),
        ({"model": "x", "reasoning_field": "no"}, "models.two: reasoning_field must be one of"),
        ({"model": "x", "served_model_name": 3}, "models.two"),
        ({"model": "x", "served_model_name": ["demo"]}, "two models are named demo"),
    ],
)
def test_mistakes_are_named(own: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plans(models={"two": own})


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"lora_modules": {"b": "/b", "a": "/a"}}, "two models have an adapter a: demo and two"),
        ({}, "two models have an adapter a: demo and two; .*lora_modules={}"),  # as beside `models`
        ({"lora_modules": {"demo": "/b"}}, "lora_modules of two: a model itself is named demo"),
    ],
)
def test_adapters_have_names_of_their_own(own: dict[str, object], said: str) -> None:
    engine = EngineConfig(enable_lora=True, lora_modules={"a": "/a"})
    with pytest.raises(ConfigError, match=said):
        make_plans(engine, ServerConfig(models={"two": {"model": "demo", **own}}), True)


def test_one_of_two_models_has_the_adapters() -> None:
    models = json.loads(rewrite_models(["--model", "two=demo,lora_modules={}"])[1])
    engine = EngineConfig(enable_lora=True, lora_modules={"a": "/a"})
    found = make_plans(engine, ServerConfig(models=models), True)
    assert [plan.engine.lora_modules for plan in found] == [{"a": "/a"}, {}]


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 300])
def test_names_can_be_written(name: str) -> None:
    with pytest.raises(ConfigError, match="printable"):
        plans(models={name: "x"})


@pytest.mark.parametrize("limit", [None, 1, 2, 3, 9])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_models_that_are_awake_at_once_share_alike(limit: int | None, count: int) -> None:
    others = {str(number): "demo" for number in range(count - 1)}
    found = plans(models=others, max_resident_models=limit)
    awake = count if limit is None else min(limit, max(count, 2))
    left, parts = Fraction(1), []
    for plan in found[::-1][:awake]:
        share = Fraction(plan.engine.memory_share or 1).limit_denominator(100)
        parts.append(left * share)
        left -= parts[-1]
    assert set(parts) == {Fraction(1, awake)}
    assert all((plan.engine.memory_share or 1) == 1 for plan in found[::-1][awake:])


def test_models_that_take_turns_are_made_ready_for_sleep() -> None:
    others = {"two": "demo", "three": {"model": "demo", "enable_sleep_mode": False}}
    for limit, ready in ((None, [False] * 3), (1, [True, True, False])):
        found = plans(models=others, max_resident_models=limit)
        assert [plan.engine.enable_sleep_mode for plan in found] == ready


def test_a_share_that_is_given_stays() -> None:
    first, second = plans(models={"two": {"model": "demo", "memory_share": 0.3}})
    assert (first.engine.memory_share, second.engine.memory_share) == (1.0, 0.3)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["A"], ["A"]),
        (["A", "B", "--port", "1"], ["A", "--models", '{"B": {"model": "B"}}', "--port", "1"]),
        (["--model", "A"], ["--model", "A"]),
        (["--model=A"], ["--model", "A"]),
        (["--model"], ["--model"]),
        (["A", "--model", "C=/c"], ["A", "--models", '{"C": {"model": "/c"}}']),
        (
            ["--model=C.1=/c,max_num_seqs=3,dtype=float32"],
            ["--models", '{"C.1": {"model": "/c", "max_num_seqs": 3, "dtype": "float32"}}'],
        ),
        (["--port", "1", "A", "B"], ["--port", "1", "A", "B"]),
        (["A", "--model", "B"], ["A", "--models", '{"B": {"model": "B"}}']),
        (["--model", "A", "--model=B"], ["--model", "A", "--models", '{"B": {"model": "B"}}']),
        (["--models", "C=/c"], ["--models", '{"C": {"model": "/c"}}']),
        (["--models.C=/c", "--models.C.seed", "1"], ["--models", MODEL_C, "--models.C.seed", "1"]),
        (["--models", "C.seed=1"], ["--models", "C.seed=1"]),
        (["--models", '{"C": "/c=1"}'], ["--models", '{"C": "/c=1"}']),
        (
            ['--model=C=/c,speculative_config={"method": "ngram", "num_speculative_tokens": 3}'],
            ["--models", json.dumps({"C": {"model": "/c", "speculative_config": DRAFTS}})],
        ),
    ],
)
def test_command_lines(words: list[str], found: list[str]) -> None:
    assert rewrite_models(words) == found


@pytest.mark.parametrize(
    "words", [["A", "B", "B"], ["--model", "B=/b", "--model", "B=/c"], ["A", "B", "--model", "B"]]
)
def test_further_models_of_one_name(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="two models are named B"):
        rewrite_models(words)


def test_an_error_names_one_of_several_models() -> None:
    first, second = found = plans(models={"two": "demo"})
    with pytest.raises(ConfigError, match=r"^models.two: bad$"), one_of(found, second):
        raise ConfigError("bad")
    said = r"^models.two: bad; .* 2 \(demo, two\)"
    with pytest.raises(CheckpointError, match=said), one_of(found, second):
        raise CheckpointError("bad")
    with pytest.raises(CheckpointError, match=r"^models.demo: bad$"), one_of(found, first):
        raise CheckpointError("bad")
    with pytest.raises(ConfigError, match=r"^bad$"), one_of([first], first):
        raise ConfigError("bad")


def test_an_option_without_a_value() -> None:
    with pytest.raises(ConfigError, match="no option=value"):
        rewrite_models(["--model", "C=/c,enforce_eager"])


def test_names_of_models(tmp_path) -> None:
    assert model_name(str(tmp_path)) == tmp_path.name
    assert model_name("demo") == "demo"
