"""Small jobs on given words: repeat, change case, reverse, spell, list, sort, pick, replace.

These teach copying, the skill under facts, JSON and tool calls alike.
"""

from demo_data import lexicon as lex
from demo_data.chat import Conversation, assistant, user
from demo_data.words import World

_ORDINALS = "first second third fourth fifth sixth".split()


def _turn(question: str, answer: str) -> Conversation:
    return Conversation([user(question), assistant(answer)])


def _text(world: World) -> str:
    draw = world.rng.random()
    if draw < 0.5:
        return " ".join(world.words(world.number(1, 8)))
    if draw < 0.7:
        return world.phrase()
    kinds = ("full name", "code", "city", "email", "file", "date", "decimal", "id", "title")
    return str(world.value(world.pick(kinds)))


def repeat(world: World) -> Conversation:
    """Repeat a text exactly, perhaps several times."""
    text = _text(world)
    if world.chance(0.15):
        count = world.number(2, 5 if len(text) < 20 else 2)
        question = world.pick(("Say {t} {n} times.", "Repeat {t} {n} times.")).format(
            t=text, n=count
        )
        return _turn(question, " ".join([text] * count))
    question = world.pick(
        ("Repeat: {t}", "Repeat after me: {t}", 'Say "{t}".', "Please repeat this: {t}", "Echo {t}",
         "Say: {t}", "Write this: {t}", "Copy this text: {t}", 'Repeat "{t}"', "Copy exactly:\n{t}")
    ).format(t=text)  # fmt: skip
    return _turn(question, text)


def case(world: World) -> Conversation:
    """Change the case of a text."""
    text = " ".join(world.words(world.number(1, 5)))
    kind, change = world.pick(
        (("upper case", str.upper), ("lower case", str.lower), ("capital letters", str.upper),
         ("title case", str.title))
    )  # fmt: skip
    shown = text.upper() if kind == "lower case" and world.chance(0.6) else text
    question = world.pick(
        ("Write {t} in {k}.", "Change to {k}: {t}", "Put this in {k}: {t}", "{t} in {k}, please.")
    ).format(t=shown, k=kind)
    return _turn(question, change(shown))


def reverse(world: World) -> Conversation:
    """Reverse the order of words, or of the letters of a short word."""
    if world.chance(0.7):
        words = world.words(world.number(2, 6))
        question = world.pick(
            ("Reverse the order of these words: {t}", "Write these words in reverse order: {t}",
             "Reverse the words: {t}", "Say these words backwards: {t}")
        ).format(t=" ".join(words))  # fmt: skip
        return _turn(question, " ".join(reversed(words)))
    word = world.pick(lex.OBJECTS + lex.ANIMALS)
    question = world.pick(("Spell {w} backwards.", "Reverse the letters of {w}.")).format(w=word)
    return _turn(question, "-".join(reversed(word)))


def spell(world: World) -> Conversation:
    """Spell a word letter by letter, or name its first or last letter or its length."""
    word = world.word().lower()
    kind = world.number(0, 4)
    if kind <= 1:
        question = world.pick(("Spell {w}.", "How do you spell {w}?", "Spell the word {w}."))
        return _turn(question.format(w=word), "-".join(word))
    if kind == 2:
        return _turn(
            f"How many letters does {word} have?", f"{'-'.join(word)}: {len(word)} letters."
        )
    first = kind == 3
    which, letter = ("first", word[0]) if first else ("last", word[-1])
    return _turn(f"What is the {which} letter of {word}?", f"The {which} letter is {letter}.")


def pick_word(world: World) -> Conversation:
    """Name the n-th or last word of a list, or count the words."""
    words = world.words(world.number(2, 6))
    listed = world.pick((", ", " ")).join(words)
    kind = world.number(0, 3)
    if kind == 0:
        question = world.pick(("How many words are here: {t}", "Count the words: {t}"))
        return _turn(question.format(t=listed), f"There are {len(words)} words.")
    if kind == 1:
        question = world.pick(("What is the last word of: {t}", "Which word is last: {t}"))
        return _turn(question.format(t=listed), f"The last word is {words[-1]}.")
    index = world.number(0, len(words) - 1)
    question = world.pick(("What is the {o} word of: {t}", "Give me the {o} word: {t}"))
    answer = f"The {_ORDINALS[index]} word is {words[index]}."
    return _turn(question.format(t=listed, o=_ORDINALS[index]), answer)


def listing(world: World) -> Conversation:
    """Write given words as a bulleted, numbered or comma-separated list."""
    words = world.words(world.number(2, 6))
    text = ", ".join(words)
    kind = world.number(0, 3)
    if kind == 0:
        question = world.pick(("Make a bullet list of {t}.", "As a bullet list: {t}"))
        return _turn(question.format(t=text), "\n".join(f"- {word}" for word in words))
    if kind == 1:
        question = world.pick(("Make a numbered list of {t}.", "Number these: {t}"))
        answer = "\n".join(f"{i}. {word}" for i, word in enumerate(words, 1))
        return _turn(question.format(t=text), answer)
    if kind == 2:
        question = world.pick(("Put each word on its own line: {t}", "One word per line: {t}"))
        return _turn(question.format(t=" ".join(words)), "\n".join(words))
    question = world.pick(("Join with commas: {t}", "Put commas between these words: {t}"))
    return _turn(question.format(t=" ".join(words)), text)


def sort(world: World) -> Conversation:
    """Sort a few numbers, or a few words with different first letters."""
    if world.chance(0.5):
        numbers = world.distinct("count", world.number(2, 6))
        shown, answer = ", ".join(map(str, numbers)), ", ".join(map(str, sorted(numbers)))  # type: ignore[type-var]
        question = world.pick(("Sort these numbers: {t}", "Put these numbers in order: {t}"))
        return _turn(question.format(t=shown), answer)
    found: dict[str, str] = {}
    pool = lex.ANIMALS + lex.OBJECTS + lex.FOODS + lex.THINGS
    for word in world.sample(pool, world.number(2, 5)):
        found.setdefault(word[0], word)
    words = list(found.values())
    question = world.pick(("Sort these words: {t}", "Put these words in alphabetical order: {t}"))
    return _turn(question.format(t=", ".join(words)), ", ".join(sorted(words)))


def edit(world: World) -> Conversation:
    """Remove, replace, add or quote a word of a short text."""
    words = world.words(world.number(3, 6))
    text, target, other = " ".join(words), world.pick(words), world.word()
    kind = world.number(0, 4)
    if kind == 0:
        question = world.pick(("Remove the word {w} from: {t}", "Delete {w} from this text: {t}"))
        answer = " ".join(word for word in words if word != target)
        return _turn(question.format(w=target, t=text), answer)
    if kind == 1:
        question = world.pick(
            ("Replace {w} with {o}: {t}", "In this text, replace {w} by {o}: {t}")
        )
        answer = " ".join(other if word == target else word for word in words)
        return _turn(question.format(w=target, o=other, t=text), answer)
    if kind == 2:
        question = world.pick(("Add {o} at the end: {t}", "Append {o} to: {t}"))
        return _turn(question.format(o=other, t=text), f"{text} {other}")
    if kind == 3:
        question = world.pick(("Put {o} in front of: {t}", "Add {o} at the start: {t}"))
        return _turn(question.format(o=other, t=text), f"{other} {text}")
    return _turn(f"Put this in quotes: {text}", f'"{text}"')


def membership(world: World) -> Conversation:
    """Ask whether a word is in a list."""
    words = world.words(world.number(2, 6))
    inside = world.chance(0.5)
    target = world.pick(words) if inside else world.word()
    inside = target in words
    question = world.pick(("Is {w} in this list: {t}?", "Does this list contain {w}? {t}"))
    answer = f"Yes, {target} is in the list." if inside else f"No, {target} is not in the list."
    return _turn(question.format(w=target, t=", ".join(words)), answer)


def fill(world: World) -> Conversation:
    """Fill a template with given values."""
    name, city, day = world.first_name(), world.value("city"), world.value("day")
    template, answer = world.pick(
        (
            ("Hello NAME, see you in CITY.", f"Hello {name}, see you in {city}."),
            ("NAME flies to CITY on DAY.", f"{name} flies to {city} on {day}."),
            ("Dear NAME, the train to CITY leaves on DAY.",
             f"Dear {name}, the train to {city} leaves on {day}."),
            ("On DAY, NAME is in CITY.", f"On {day}, {name} is in {city}."),
        )
    )  # fmt: skip
    values = f"NAME is {name}, CITY is {city}, DAY is {day}."
    question = world.pick(
        ("Fill in: {t} {v}", "Fill this template: {t}\n{v}", "{v}\nTemplate: {t}")
    )
    return _turn(question.format(t=template, v=values), answer)


INSTRUCTIONS = (
    (6, repeat),
    (2.5, case),
    (2, reverse),
    (2.5, spell),
    (2, pick_word),
    (2, listing),
    (1.8, sort),
    (2, edit),
    (1, membership),
    (1, fill),
)


def instruction(world: World) -> Conversation:
    """Make any of the small jobs."""
    return world.pick_weighted(INSTRUCTIONS)(world)
