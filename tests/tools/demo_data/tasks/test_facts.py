"""Questions about given facts have one right answer, or say that there is none."""

from demo_data.tasks import facts

VERBS = {
    "live in": "lives in",
    "work as a": "works as a",
    "like": "likes",
    "have a": "has a",
    "speak": "speaks",
}


def test_facts_can_be_told_apart(worlds) -> None:
    for world in worlds(300):
        made = facts.make_facts(world, 8)
        assert made
        keys = [(f.relation.questions[0], f.subject) for f in made]
        values = [(f.relation.questions[0], f.value) for f in made]
        assert len(set(keys)) == len(keys)
        assert len(set(values)) == len(values)


def test_answers_are_facts_or_unknown(worlds) -> None:
    unknown = 0
    for world in worlds(500):
        made = facts.make_facts(world, world.number(1, 8))
        _, answer = facts.ask(world, made)
        unknown += answer == facts.UNKNOWN
        if answer != facts.UNKNOWN:
            assert [f for f in made if answer in (f.answer, f.value)]
    assert 10 < unknown < 150


def test_a_plain_question_names_its_value(worlds) -> None:
    for world in worlds(300, held_out=True):
        made, value = facts.plain_reading(world, 4)
        assert value in made.messages[0]["content"]
        assert value in made.messages[1]["content"]


def test_an_introduction_answers_its_questions(worlds) -> None:
    for world in worlds(200):
        messages, questions = facts.introduction(world)
        for _, answer in questions:
            value = answer.rstrip(".").split(" ", 3)[-1].removesuffix(" years old")
            assert value.split()[-1] in messages[0]["content"]


def test_a_wrong_guess_is_corrected(worlds) -> None:
    for world in worlds(200):
        question, answer = (m["content"] for m in facts.yes_or_no(world).messages)
        stated = answer.split(", ", 1)[1]
        assert stated in question
        asked = question.split(" Does ")[1].rstrip("?")
        for base, verb in VERBS.items():
            asked = asked.replace(f" {base} ", f" {verb} ")
        assert answer.startswith("Yes") == (stated == f"{asked}.")
