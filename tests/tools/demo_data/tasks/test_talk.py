"""Talk is consistent: one question never has two meanings, stories use the names asked for."""

from collections import defaultdict

from demo_data.tasks import dialogue, talk


def test_a_fixed_question_has_one_row() -> None:
    rows = defaultdict(set)
    for table in (dialogue.IDENTITY, dialogue.SMALL_TALK):
        for questions, answers in table:
            for question in questions.split(" | "):
                rows[question.strip()].add(answers)
    assert {question: len(found) for question, found in rows.items() if len(found) > 1} == {}


def test_a_story_is_about_whom_was_asked(worlds) -> None:
    for world in worlds(100):
        question, answer = (m["content"] for m in talk.story(world).messages)
        if "named" in question:
            name = question.rstrip(".").split()[-1]
            assert answer.count(name) >= 2


def test_programs_compile(worlds) -> None:
    for world in worlds(100):
        answer = talk.program(world).messages[-1]["content"]
        compile(answer.removeprefix("```python\n").removesuffix("\n```"), "answer", "exec")


def test_unknowable_questions_are_not_answered(worlds) -> None:
    for world in worlds(100):
        assert talk.unknown(world).messages[-1]["content"] == dialogue.DO_NOT_KNOW
        assert talk.out_of_reach(world).messages[-1]["content"] == dialogue.OUT_OF_REACH


def test_a_persona_answers_with_its_own_name(worlds) -> None:
    for world in worlds(100):
        system, *rest = (m["content"] for m in talk.persona(world).messages)
        name = system.split("You are ")[1] if system.startswith("You") else ""
        if "What is your name?" in rest and name:
            reply = rest[rest.index("What is your name?") + 1]
            assert reply.removeprefix("My name is ").rstrip(".") in system
