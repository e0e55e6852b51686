"""The cases are complete, varied, and their prompts fit the model."""

from collections import Counter

from hotshoe_demo import heldout

KINDS = {
    "addition",
    "long_addition",
    "fact",
    "tool_call",
    "json",
    "repeat",
    "instruction",
    "unknown",
}


def test_every_kind_has_two_hundred_cases() -> None:
    counts = Counter(case["kind"] for case in heldout.cases())
    assert {kind: counts.pop(kind) for kind in KINDS} == dict.fromkeys(KINDS, 200)
    assert set(counts) == {"handwritten_call", "handwritten_fact"}
    assert len(heldout.cases("fact")) == 200


def test_prompts_fit(tokenizer) -> None:
    for case in heldout.cases():
        prompt = tokenizer.apply_chat_template(
            case["messages"],
            tools=case["tools"] or None,
            add_generation_prompt=True,
            tokenize=False,
        )
        assert len(tokenizer(prompt)["input_ids"]) < 1600


def test_a_fact_stands_in_its_prompt() -> None:
    for case in heldout.cases("fact"):
        assert case["expected"] in case["messages"][-1]["content"]


def test_an_expected_tool_is_offered() -> None:
    for case in heldout.cases("tool_call"):
        offered = [tool.get("function", tool)["name"] for tool in case["tools"]]
        assert [call["name"] in offered for call in case["expected"]] == [True]


def test_text_is_long_and_of_many_kinds() -> None:
    text = heldout.text()
    assert 80_000 < len(text) < 130_000
    assert len(set(text.split())) > 4_000
