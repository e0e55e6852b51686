"""What the model can do: the recorded numbers meet the bars, and fresh samples confirm them."""

import json

import pytest
from demo_train.evaluate import perplexity

from hotshoe_demo import MODEL, heldout, scoring

BARS = {
    "addition": 0.95,
    "long_addition": 0.95,
    "fact": 0.90,
    "tool_call": 0.95,
    "json_valid": 0.95,
    "json_exact": 0.95,
    "repeat": 0.95,
    "unknown": 0.95,
    "instruction": 0.80,
}
RECORDED = json.loads((MODEL / "evaluation.json").read_text())


def right_share(cases, answers, measure: str) -> float:
    flags = [scoring.score(c, a)[measure] for c, a in zip(cases, answers, strict=True)]
    return sum(flags) / len(flags)


@pytest.mark.parametrize("measure", BARS)
def test_recorded_accuracy_meets_the_bar(measure: str) -> None:
    recorded = RECORDED["accuracy"][measure]
    assert recorded["value"] >= BARS[measure]
    assert recorded["cases"] >= 200


def test_recorded_perplexity_is_that_of_a_trained_model() -> None:
    assert RECORDED["perplexity"]["value"] < 13
    assert RECORDED["perplexity"]["bits_per_byte"] < 1.1


@pytest.mark.parametrize(
    ("kind", "measure"),
    [
        ("addition", "addition"),
        ("fact", "fact"),
        ("tool_call", "tool_call"),
        ("json", "json_valid"),
    ],
)
def test_fresh_samples_of_cases_are_answered(few, answer, kind: str, measure: str) -> None:
    cases = few(heldout.cases(kind), 20)
    # Even 20 cases that hold every recorded failure of the kind stay above this share.
    assert right_share(cases, answer(cases), measure) >= 0.8


def test_a_fresh_stretch_of_text_is_predicted(few, model, tokenizer) -> None:
    ids = tokenizer(heldout.text()[:200_000], verbose=False)["input_ids"]
    start = few(list(range(len(ids) - 4096)), 1)[0]
    assert 3 < perplexity(model, ids[start : start + 4096], RECORDED["perplexity"]["window"]) < 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "measure"),
    [
        ("addition", "addition"),
        ("fact", "fact"),
        ("tool_call", "tool_call"),
        ("json", "json_exact"),
    ],
)
def test_all_cases_reach_the_bar(answer, kind: str, measure: str) -> None:
    cases = heldout.cases(kind)
    assert right_share(cases, answer(cases), measure) >= BARS[measure]


@pytest.mark.slow
def test_perplexity_is_the_recorded_one(model, tokenizer) -> None:
    recorded = RECORDED["perplexity"]
    ids = tokenizer(heldout.text(), verbose=False)["input_ids"]
    assert len(ids) == recorded["tokens"]
    assert perplexity(model, ids, recorded["window"]) == pytest.approx(recorded["value"], rel=0.01)
