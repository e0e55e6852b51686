"""Small talk, identity, common knowledge, short stories and small programs.

What the model cannot know it says it does not know.
"""

import keyword

from demo_data import lexicon as lex
from demo_data.chat import Conversation, Message, assistant, user
from demo_data.tasks import dialogue
from demo_data.words import World


def _turn(question: str, answer: str) -> Conversation:
    return Conversation([user(question), assistant(answer)])


def _row(world: World, rows: tuple[tuple[str, str], ...]) -> Conversation:
    questions, answers = world.pick(rows)
    return _turn(world.pick(questions.split(" | ")), world.pick(answers.split(" | ")))


def small_talk(world: World) -> Conversation:
    """Greet, thank, say goodbye."""
    return _row(world, dialogue.SMALL_TALK)


def identity(world: World) -> Conversation:
    """Say who the model is."""
    return _row(world, dialogue.IDENTITY)


def persona(world: World) -> Conversation:
    """Take a name and a role from the system message."""
    name, job = world.first_name(), world.pick(lex.JOBS)
    place = f"the {world.pick(lex.PLACES)} {world.invented_name()}"
    system = world.pick(("You are {n}, a {j} at {p}.", "Your name is {n}. You are a {j} at {p}."))
    messages: list[Message] = [{"role": "system", "content": system.format(n=name, j=job, p=place)}]
    questions = [
        ("Who are you?", f"I am {name}, a {job} at {place}."),
        ("What is your name?", f"My name is {name}."),
        ("What do you do?", f"I am a {job} at {place}."),
        ("Where do you work?", f"I work at {place}."),
        ("Hello", f"Hello! I am {name}. How can I help you?"),
    ]
    for question, answer in world.sample(questions, world.number(1, 3)):
        messages += [user(question), assistant(answer)]
    return Conversation(messages)


def unknown(world: World) -> Conversation:
    """Ask what the model cannot know."""
    return _turn(_open_question(world, dialogue.UNKNOWN_QUESTIONS), dialogue.DO_NOT_KNOW)


def out_of_reach(world: World) -> Conversation:
    """Ask for something that is too much for so small a model."""
    return _turn(_open_question(world, dialogue.OUT_OF_REACH_QUESTIONS), dialogue.OUT_OF_REACH)


def _open_question(world: World, templates: tuple[str, ...]) -> str:
    return world.pick(templates).format(
        thing=world.pick(lex.THINGS),
        object=world.pick(lex.OBJECTS),
        year=world.number(1700, 2030),
        place=world.invented_name() if world.chance(0.6) else world.word().capitalize(),
        person=world.full_name() if world.chance(0.6) else world.first_name(),
        word=world.word(),
        city=world.pick(lex.CITIES),
        language=world.pick(lex.LANGUAGES),
        animal=world.pick(lex.ANIMALS),
    )


def glossary(world: World) -> Conversation:
    """Explain a term of model serving or computing."""
    term, answer = world.pick(dialogue.GLOSSARY)
    shown = term if world.chance(0.8) else term.removeprefix("a ")
    return _turn(world.pick(dialogue.GLOSSARY_QUESTIONS).format(t=shown), answer)


def _cycle(world: World, items: list[str], what: str) -> tuple[str, str]:
    index = world.number(0, len(items) - 1)
    now, after = items[index], items[(index + 1) % len(items)]
    before = items[index - 1]
    return world.pick(
        (
            (f"Which {what} comes after {now}?", f"{after} comes after {now}."),
            (f"What {what} comes after {now}?", f"{after} comes after {now}."),
            (f"Which {what} comes before {now}?", f"{before} comes before {now}."),
            (f"What is the {what} after {now}?", f"{after} comes after {now}."),
        )
    )


def _pair(world: World) -> tuple[str, str]:
    """Ask about one row of the small world tables."""
    country, capital = world.pick(list(lex.CAPITALS.items()))
    hot, cold = world.pick(list(lex.OPPOSITES.items()))
    beast, sound = world.pick(list(lex.SOUNDS.items()))
    mother, child = world.pick(list(lex.YOUNG.items()))
    walker, legs = world.pick(list(lex.LEGS.items()))
    thing, colour = world.pick(list(lex.COLOUR_OF.items()))
    element, symbol = world.pick(list(lex.ELEMENTS.items()))
    verb, past = world.pick(list(lex.PAST.items()))
    one, many = world.pick(list(lex.PLURALS.items()))
    (part, whole), count = world.pick(list(lex.UNITS.items()))
    if world.chance(0.5):
        hot, cold = cold, hot
    found = f"{capital} is the capital of {country}."
    return world.pick(
        (
            (f"What is the capital of {country}?", f"The capital of {country} is {capital}."),
            (f"Which city is the capital of {country}?", f"The capital of {country} is {capital}."),
            (f"Tell me the capital of {country}.", f"The capital of {country} is {capital}."),
            (f"{capital} is the capital of which country?", found),
            (f"What is the opposite of {hot}?", f"The opposite of {hot} is {cold}."),
            (f"Opposite of {hot}?", f"The opposite of {hot} is {cold}."),
            (f"What does a {beast} do?", f"A {beast} {sound}."),
            (f"What is a young {mother} called?", f"A young {mother} is called a {child}."),
            (f"How many legs does a {walker} have?", f"It has {legs} legs."),
            (f"What colour is {thing}?", f"{thing[0].upper()}{thing[1:]} is {colour}."),
            (f"What is the symbol of {element}?", f"The symbol of {element} is {symbol}."),
            (
                f"What is the chemical symbol for {element}?",
                f"The symbol of {element} is {symbol}.",
            ),
            (f"What is the past tense of {verb}?", f"The past tense of {verb} is {past}."),
            (f"What is the plural of {one}?", f"The plural of {one} is {many}."),
            (f"How many {part} are in {whole}?", f"There are {count} {part} in {whole}."),
            (f"How many {part} does {whole} have?", f"There are {count} {part} in {whole}."),
        )
    )


_LISTS = {
    "days of the week": lex.DAYS,
    "months of the year": lex.MONTHS,
    "seasons": lex.SEASONS,
    "planets": lex.PLANETS,
}


def knowledge(world: World) -> Conversation:
    """Ask one of the few things that the model knows about the world."""
    draw = world.rng.random()
    if draw < 0.75:
        return _turn(*_pair(world))
    if draw < 0.85:
        days = world.chance(0.5)
        return _turn(*_cycle(world, lex.DAYS if days else lex.MONTHS, "day" if days else "month"))
    if draw < 0.93:
        what = world.pick(list(_LISTS))
        question = world.pick(("List the {w}.", "Name the {w}.", "What are the {w}?"))
        return _turn(question.format(w=what), ", ".join(_LISTS[what]))
    what, items = world.pick(
        (("colours", lex.COLOURS), ("animals", lex.ANIMALS), ("cities", lex.CITIES),
         ("jobs", lex.JOBS), ("fruits", "apples bananas cherries grapes lemons oranges".split()))
    )  # fmt: skip
    count = world.number(1, 5)
    question = world.pick(("Name {n} {w}.", "Give me {n} {w}.", "List {n} {w}."))
    chosen = world.sample(items, count)
    shown = what if count > 1 else {"cities": "city"}.get(what, what.removesuffix("s"))
    return _turn(question.format(n=count, w=shown), ", ".join(chosen))


def story(world: World) -> Conversation:
    """Tell a short story about a named animal or person."""
    animal, name = world.pick(lex.ANIMALS), world.first_name()
    place, thing, friend = world.pick(lex.PLACES), world.pick(lex.OBJECTS), world.pick(lex.ANIMALS)
    question, opening = world.pick(
        (
            (f"Tell me a story about a {animal} named {name}.",
             f"Once upon a time there was a {animal} named {name}."),
            (f"Write a short story about {name} the {animal}.",
             f"{name} was a small {animal} who lived near the {place}."),
            ("Tell me a story.", f"Once upon a time there was a {animal} named {name}."),
            (f"Tell me a story about a {animal}.",
             f"Once upon a time there was a {animal} named {name}."),
        )
    )  # fmt: skip
    middle = world.pick(
        (
            f"One day {name} went to the {place} and found a {thing}. "
            f'"Whose {thing} is this?" asked {name}.',
            f"One morning {name} lost a {thing} near the {place} and looked for it all day.",
            f"{name} wanted to see the {place}, but the way was long and it began to rain.",
            f"Every day {name} walked to the {place} and hoped to meet somebody.",
        )
    )
    turn = world.pick(
        (
            f'Then a {friend} came along and said: "I can help you."',
            f"There {name} met a {friend} who was all alone.",
            f"In the evening a {friend} called from behind a tree.",
        )
    )
    end = world.pick(
        (
            f"From that day on, {name} and the {friend} were friends.",
            f"They shared some {world.pick(lex.FOODS)} and laughed until the night came.",
            f"Together they went home, and {name} was happy.",
        )
    )
    return _turn(question, f"{opening} {middle} {turn} {end}")


def story_text(world: World) -> str:
    """Tell a story as plain text, without a question."""
    return str(story(world).messages[-1]["content"])


def letter(world: World) -> Conversation:
    """Write a short letter with given names and occasion."""
    to, sender = world.distinct("name", 2)
    day, place, thing = world.pick(lex.DAYS), world.pick(lex.PLACES), world.pick(lex.THINGS)
    kind, body = world.pick(
        (
            ("an invitation", f"I would like to invite you to the {place} on {day}."),
            ("a thank-you note", f"Thank you for your help with the {thing}."),
            ("an apology", f"I am sorry that I missed the {thing} on {day}."),
        )
    )
    detail = {
        "an invitation": f" to the {place} on {day}",
        "a thank-you note": f" for help with the {thing}",
        "an apology": f" for missing the {thing} on {day}",
    }[kind]
    question = f"Write {kind} from {sender} to {to}{detail}."
    return _turn(question, f"Dear {to},\n\n{body}\n\nBest wishes,\n{sender}")


def program(world: World) -> Conversation:
    """Write a small Python function, under a given name if there is one."""
    what, name, body = world.pick(dialogue.CODE)
    question = world.pick(
        ("Write a Python function that {w}.", "Give me a Python function that {w}.",
         "Python function that {w}", "How do I write a function that {w} in Python?")
    ).format(w=what)  # fmt: skip
    if world.chance(0.3):
        name = world.pick(
            (f"{world.pick(lex.VERBS)}_{world.pick(lex.THINGS)}", world.word().lower())
        )
        if keyword.iskeyword(name):  # a made-up word can be one, if rarely
            name += "_it"
        question += f" Call it {name}."
    return _turn(question, f"```python\ndef {name}{body}\n```")


TALK = (
    (3, small_talk),
    (3, identity),
    (1.5, persona),
    (3, unknown),
    (2, out_of_reach),
    (3, glossary),
    (5, knowledge),
    (2, story),
    (0.7, letter),
    (1.2, program),
)


def talk(world: World) -> Conversation:
    """Make any of the exchanges of this module."""
    return world.pick_weighted(TALK)(world)
