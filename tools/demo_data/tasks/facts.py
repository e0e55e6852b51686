"""Facts given in the prompt, among distractors, and questions about them.

A relation is data: how it is stated, how it is asked, and the kind of its value.  What the text
does not say is answered with `UNKNOWN`.
"""

from dataclasses import dataclass

from demo_data.chat import Conversation, Message, assistant, user
from demo_data.words import World

UNKNOWN = "I do not know. The text does not say."


@dataclass(frozen=True)
class Relation:
    """One relation; `{s}` is the subject, `{v}` the value; the first statement is the answer."""

    kind: str
    statements: tuple[str, ...]
    questions: tuple[str, ...]
    subject: str = "name"
    inverse: str = ""


@dataclass(frozen=True)
class Fact:
    """One relation between a subject and a value."""

    relation: Relation
    subject: str
    value: str

    def state(self, world: World) -> str:
        """Write the fact as a sentence."""
        return world.pick(self.relation.statements).format(s=self.subject, v=self.value)

    @property
    def answer(self) -> str:
        """The sentence that answers a question about this fact."""
        return self.relation.statements[0].format(s=self.subject, v=self.value)


def _relation(kind: str, statements: str, questions: str, **options: str) -> Relation:
    return Relation(kind, tuple(statements.split(" | ")), tuple(questions.split(" | ")), **options)


RELATIONS: tuple[Relation, ...] = (
    _relation(
        "city",
        "{s} lives in {v}. | The home of {s} is in {v}. | {s} has a flat in {v}.",
        "Where does {s} live? | In which city does {s} live? | What city does {s} live in?",
        inverse="Who lives in {v}?",
    ),
    _relation(
        "city",
        "{s} was born in {v}. | The birthplace of {s} is {v}.",
        "Where was {s} born? | What is the birthplace of {s}?",
        inverse="Who was born in {v}?",
    ),
    _relation(
        "job",
        "{s} works as a {v}. | {s} is a {v}. | {s} is a {v} by trade.",
        "What does {s} do? | What is the job of {s}? | What does {s} work as? | What is {s}'s job?",
        inverse="Who works as a {v}?",
    ),
    _relation(
        "age",
        "{s} is {v} years old. | The age of {s} is {v}. | {s} is aged {v}.",
        "How old is {s}? | What is the age of {s}? | What is {s}'s age?",
        inverse="Who is {v} years old?",
    ),
    _relation(
        "year",
        "{s} was born in the year {v}. | The year of birth of {s} is {v}.",
        "In which year was {s} born? | When was {s} born?",
    ),
    _relation(
        "colour",
        "The favourite colour of {s} is {v}. | {s} likes {v} best. | {s}'s favourite colour is {v}.",
        "What is the favourite colour of {s}? | What is {s}'s favourite colour?"
        " | Which colour does {s} like best?",
    ),
    _relation(
        "food",
        "{s} likes {v}. | {s} loves to eat {v}. | The favourite food of {s} is {v}.",
        "What does {s} like to eat? | What is the favourite food of {s}? | What does {s} like?",
        inverse="Who likes {v}?",
    ),
    _relation(
        "animal",
        "{s} has a {v}. | {s} keeps a {v} at home. | The pet of {s} is a {v}.",
        "Which animal does {s} have? | What pet does {s} have? | What animal does {s} keep?",
        inverse="Who has a {v}?",
    ),
    _relation(
        "place name",
        "The dog of {s} is called {v}. | {s} has a dog called {v}. | {s}'s dog is named {v}.",
        "What is the dog of {s} called? | What is the name of {s}'s dog?",
    ),
    _relation(
        "language",
        "{s} speaks {v}. | {s} speaks {v} very well. | The language of {s} is {v}.",
        "Which language does {s} speak? | What language does {s} speak? | What does {s} speak?",
        inverse="Who speaks {v}?",
    ),
    _relation(
        "full name",
        "{s} is married to {v}. | {s} married {v}. | {s} and {v} are married.",
        "Who is {s} married to? | Whom did {s} marry?",
    ),
    _relation(
        "name",
        "The sister of {s} is {v}. | {s} has a sister called {v}. | {s}'s sister is {v}.",
        "Who is the sister of {s}? | What is the name of {s}'s sister? | Who is {s}'s sister?",
    ),
    _relation(
        "email",
        "The e-mail address of {s} is {v}. | You can write to {s} at {v}. | {s}'s e-mail is {v}.",
        "What is the e-mail address of {s}? | What is {s}'s e-mail? | How can I write to {s}?",
    ),
    _relation(
        "id",
        "The phone number of {s} is {v}. | {s} can be called at {v}. | {s}'s phone number is {v}.",
        "What is the phone number of {s}? | What is {s}'s phone number? | How can I call {s}?",
    ),
    _relation(
        "code",
        "The password of {s} is {v}. | {s} uses the password {v}. | {s}'s password is {v}.",
        "What is the password of {s}? | What is {s}'s password? | Which password does {s} use?",
    ),
    _relation(
        "room",
        "The {s} is in the {v}. | You can find the {s} in the {v}. | Someone left the {s} in the {v}.",
        "Where is the {s}? | In which room is the {s}? | Where can I find the {s}?",
        subject="object",
        inverse="What is in the {v}?",
    ),
    _relation(
        "colour",
        "The {s} is {v}. | The colour of the {s} is {v}. | I have a {v} {s}.",
        "What colour is the {s}? | What is the colour of the {s}? | Which colour does the {s} have?",
        subject="object",
    ),
    _relation(
        "price",
        "The {s} costs {v} euros. | The price of the {s} is {v} euros. | You pay {v} euros for the {s}.",
        "How much does the {s} cost? | What does the {s} cost? | What is the price of the {s}?",
        subject="object",
    ),
    _relation(
        "time",
        "The {s} opens at {v}. | Opening time of the {s}: {v}. | The doors of the {s} open at {v}.",
        "When does the {s} open? | At what time does the {s} open?",
        subject="place",
    ),
    _relation(
        "time",
        "The {s} closes at {v}. | The {s} shuts at {v}.",
        "When does the {s} close? | At what time does the {s} close?",
        subject="place",
    ),
    _relation(
        "day",
        "The {s} is on {v}. | The {s} takes place on {v}. | We moved the {s} to {v}.",
        "When is the {s}? | On which day is the {s}? | What day is the {s}?",
        subject="thing",
    ),
    _relation(
        "date",
        "The date of the {s} is {v}. | The {s} is due on {v}. | {v} is the date of the {s}.",
        "What is the date of the {s}? | On what date is the {s}?",
        subject="thing",
    ),
    _relation(
        "code",
        "The code of the {s} is {v}. | The {s} has the code {v}. | Use code {v} for the {s}.",
        "What is the code of the {s}? | Which code does the {s} have? | What code is for the {s}?",
        subject="thing",
    ),
    _relation(
        "full name",
        "{v} is in charge of the {s}. | The {s} is run by {v}. | The head of the {s} is {v}.",
        "Who is in charge of the {s}? | Who runs the {s}? | Who is the head of the {s}?",
        subject="thing",
    ),
    _relation(
        "place name",
        "The {s} is called {v}. | The name of the {s} is {v}. | They call the {s} {v}.",
        "What is the {s} called? | What is the name of the {s}?",
        subject="place",
    ),
    _relation(
        "place name",
        "The capital of {s} is {v}. | {v} is the capital of {s}. | {s} has {v} as its capital.",
        "What is the capital of {s}? | Which city is the capital of {s}?",
        subject="place name",
    ),
    _relation(
        "count",
        "There are {v} people in the {s}. | The {s} holds {v} people. | {v} people are in the {s}.",
        "How many people are in the {s}? | How many people does the {s} hold?",
        subject="place",
    ),
    _relation(
        "year",
        "The {s} was built in {v}. | They built the {s} in {v}. | The {s} dates from {v}.",
        "When was the {s} built? | In which year was the {s} built?",
        subject="place",
    ),
)
_KINDS = ("word", "code", "number", "full name", "city", "time", "colour", "place name", "decimal")


def free_relation(world: World) -> Relation:
    """Invent a relation from any word, so that the skill is not tied to the table."""
    thing = world.word()
    shape = world.number(0, 2)
    if shape == 0:
        return _relation(
            world.pick(_KINDS),
            f"The {thing} of {{s}} is {{v}}. | {{s}}'s {thing} is {{v}}. | {{v}} is the {thing} of {{s}}.",
            f"What is the {thing} of {{s}}? | What is {{s}}'s {thing}? | Tell me the {thing} of {{s}}.",
            subject="name",
        )
    if shape == 1:
        return _relation(
            world.pick(_KINDS),
            f"The {thing} of the {{s}} is {{v}}. | The {{s}} has the {thing} {{v}}.",
            f"What is the {thing} of the {{s}}? | Which {thing} does the {{s}} have?",
            subject=world.pick(("thing", "object", "place", "word")),
        )
    return _relation(
        world.pick(_KINDS),
        f"The {thing} in {{s}} is {{v}}. | In {{s}} the {thing} is {{v}}.",
        f"What is the {thing} in {{s}}? | In {{s}}, what is the {thing}?",
        subject=world.pick(("city", "place name", "month")),
    )


def make_facts(world: World, count: int) -> list[Fact]:
    """Make facts of few relations over few subjects, so that they can be confused.

    No two facts share both relation and subject, and within a relation no value repeats.
    """
    relations = [
        free_relation(world) if world.chance(0.3) else world.pick(RELATIONS)
        for _ in range(world.number(1, max(1, min(3, count))))
    ]
    facts: list[Fact] = []
    subjects: dict[str, list[str]] = {}
    taken: set[tuple[str, str]] = set()
    for _ in range(4 * count):
        if len(facts) == count:
            break
        relation = world.pick(relations)
        known = subjects.setdefault(relation.subject, [])
        reuse = known and world.chance(0.4)
        subject = world.pick(known) if reuse else str(world.value(relation.subject))
        value = str(world.value(relation.kind))
        asked = relation.questions[0]
        if (asked, subject) in taken or (asked, value) in taken or value == subject:
            continue
        taken |= {(asked, subject), (asked, value)}
        known.append(subject)
        facts.append(Fact(relation, subject, value))
    return facts or make_facts(world, count)


def write_text(world: World, facts: list[Fact]) -> str:
    """Write facts as one text: sentences, lines, or a list."""
    sentences = [fact.state(world) for fact in facts]
    return world.pick_weighted(
        ((6, " ".join(sentences)), (2, "\n".join(sentences)), (2, "- " + "\n- ".join(sentences)))
    )


_FRAMES = (
    "{text} {question}",
    "{text}\n{question}",
    "{text}\n\n{question}",
    "Context: {text}\nQuestion: {question}",
    "Context:\n{text}\n\nQuestion: {question}",
    "Here are some facts. {text} {question}",
    "Read this text:\n{text}\n\nNow answer: {question}",
    "{text} Now tell me: {question}",
    "{question}\n\n{text}",
    "Use this text to answer.\n\n{text}\n\n{question}",
    "Text: {text}\n\n{question}",
    "I know this: {text} {question}",
)
_BRIEF = (" Answer briefly.", " Answer with the value only.", " In one word.", " Be short.")
_REMEMBER = ("Please remember: {text}", "Remember this: {text}", "{text}", "Note that {text}")
_NOTED = "I will remember that."


def ask(world: World, facts: list[Fact]) -> tuple[str, str]:
    """Ask about one of the facts; return question and answer."""
    fact = world.pick(facts)
    draw = world.rng.random()
    question = world.pick(fact.relation.questions).format(s=fact.subject, v=fact.value)
    if draw < 0.60:
        return question, fact.answer
    if draw < 0.75:
        return question + world.pick(_BRIEF), fact.value
    same = [f for f in facts if f.relation.kind == fact.relation.kind and f is not fact]
    inverse = draw < 0.83 and fact.relation.inverse
    if inverse and all(f.value != fact.value for f in same):
        return fact.relation.inverse.format(v=fact.value), fact.answer
    return _unknown(world, facts, fact)


def _unknown(world: World, facts: list[Fact], fact: Fact) -> tuple[str, str]:
    """Ask about a subject, or a relation, that the text does not mention."""
    stated = {(f.relation.questions[0], f.subject) for f in facts}
    relation = fact.relation if world.chance(0.6) else world.pick(RELATIONS)
    subject = str(world.value(relation.subject))
    if world.chance(0.5) and relation.subject == fact.relation.subject:
        subject = fact.subject
    others = [f for f in facts if f.subject == subject]
    similar = any(
        set(f.relation.questions) & set(relation.questions) or f.relation.kind == relation.kind
        for f in others
    )
    if similar or (relation.questions[0], subject) in stated:
        question = world.pick(fact.relation.questions).format(s=fact.subject, v=fact.value)
        return question, fact.answer
    return world.pick(relation.questions).format(s=subject), UNKNOWN


def reading(world: World) -> Conversation:
    """Give facts and ask one question in the same message."""
    facts = make_facts(world, world.pick((1, 1, 2, 2, 3, 3, 4, 5, 6, 8)))
    question, answer = ask(world, facts)
    prompt = world.pick(_FRAMES).format(text=write_text(world, facts), question=question)
    return Conversation([user(prompt), assistant(answer)])


def thoughtful_reading(world: World) -> Conversation:
    """Give facts and ask for one; a thought names the subject and the value first."""
    facts = make_facts(world, world.number(1, 6))
    fact = world.pick(facts)
    question = world.pick(fact.relation.questions).format(s=fact.subject)
    prompt = world.pick(_FRAMES).format(text=write_text(world, facts), question=question)
    thought = f"The question is about {fact.subject}. The text gives {fact.value}."
    return Conversation([user(prompt), assistant(fact.answer)], thought=thought)


def plain_reading(world: World, count: int) -> tuple[Conversation, str]:
    """Give facts and ask for one of them; return the conversation and the bare value."""
    facts = make_facts(world, count)
    fact = world.pick(facts)
    question = world.pick(fact.relation.questions).format(s=fact.subject)
    prompt = world.pick(_FRAMES).format(text=write_text(world, facts), question=question)
    return Conversation([user(prompt), assistant(fact.answer)]), fact.value


def long_reading(world: World) -> Conversation:
    """Give many facts first, then ask several questions in turn."""
    facts = make_facts(world, world.number(8, 40) if world.chance(0.8) else world.number(40, 110))
    text = write_text(world, facts)
    as_system = world.chance(0.4)
    messages: list[Message]
    if as_system:
        messages = [{"role": "system", "content": f"Answer from this text.\n{text}"}]
    else:
        messages = [user(world.pick(_REMEMBER).format(text=text)), assistant(_NOTED)]
    for _ in range(world.number(1, 5)):
        question, answer = ask(world, facts)
        messages += [user(question), assistant(answer)]
    return Conversation(messages)


def remembering(world: World) -> Conversation:
    """State one or two facts as a message of their own; the question comes a turn later."""
    facts = make_facts(world, world.number(1, 3))
    text = write_text(world, facts)
    messages = [user(world.pick(_REMEMBER).format(text=text)), assistant(_NOTED)]
    question, answer = ask(world, facts)
    return Conversation([*messages, user(question), assistant(answer)])


_SELF = (
    ("city", "I live in {v}", "Where do I live?", "You live in {v}."),
    ("job", "I work as a {v}", "What is my job?", "You work as a {v}."),
    ("age", "I am {v} years old", "How old am I?", "You are {v} years old."),
    ("food", "I like {v}", "What do I like?", "You like {v}."),
    ("animal", "I have a {v}", "Which animal do I have?", "You have a {v}."),
    ("colour", "my favourite colour is {v}", "What is my favourite colour?",
     "Your favourite colour is {v}."),
    ("city", "I come from {v}", "Where do I come from?", "You come from {v}."),
    ("language", "I speak {v}", "Which language do I speak?", "You speak {v}."),
)  # fmt: skip
_NAMED = ("my name is {n}", "I am {n}", "I'm {n}", "hi, I'm {n}", "hello, my name is {n}")
_ASK_NAME = ("What is my name?", "What's my name?", "Do you know my name?", "Who am I?")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def introduction(world: World) -> tuple[list[Message], list[tuple[str, str]]]:
    """Introduce oneself; return the exchange and the questions that it answers."""
    name = world.full_name() if world.chance(0.3) else world.first_name()
    told = [world.pick(_NAMED).format(n=name)]
    questions = [(world.pick(_ASK_NAME), f"Your name is {name}.")]
    for kind, said, asked, answer in world.sample(_SELF, world.pick((0, 0, 1, 1, 2))):
        value = world.value(kind)
        told.append(said.format(v=value))
        questions.append((asked, answer.format(v=value)))
    text = world.pick((" and ", ". ", ", "))
    joined = text.join(map(_sentence, told) if text == ". " else told)
    messages = [user(_sentence(joined) + "."), assistant(f"Hello, {name}! How can I help you?")]
    return messages, questions


def own_words(world: World) -> Conversation:
    """Tell something about oneself, then ask for it."""
    messages, questions = introduction(world)
    for question, reply in world.sample(questions, world.number(1, 2)):
        messages += [user(question), assistant(reply)]
    return Conversation(messages)


_DEGREES = (
    ("taller", "shorter"), ("older", "younger"), ("faster", "slower"), ("bigger", "smaller"),
    ("richer", "poorer"), ("stronger", "weaker"), ("happier", "sadder"), ("heavier", "lighter"),
)  # fmt: skip


def comparing(world: World) -> Conversation:
    """Say that one person is more of something; ask for the one who is more, or less."""
    more, less = world.pick(_DEGREES)
    above, below = world.distinct("name", 2)
    told = world.pick((f"{above} is {more} than {below}.", f"{below} is {less} than {above}."))
    word, name = world.pick(((more, above), (less, below)))
    return Conversation([user(f"{told} Who is {word}?"), assistant(f"{name} is {word}.")])


def yes_or_no(world: World) -> Conversation:
    """Ask whether a stated fact holds; a wrong guess is corrected."""
    pairs = world.distinct("name", world.number(1, 4))
    verb, base, kind = world.pick(
        (("lives in", "live in", "city"), ("works as a", "work as a", "job"),
         ("likes", "like", "food"), ("has a", "have a", "animal"), ("speaks", "speak", "language"))
    )  # fmt: skip
    values = world.distinct(kind, len(pairs) + 1)
    text = " ".join(f"{name} {verb} {value}." for name, value in zip(pairs, values, strict=False))
    index = world.number(0, len(pairs) - 1)
    name, value = pairs[index], values[index]
    true = world.chance(0.5)
    guess = value if true else world.pick([v for v in values if v != value])
    reply = f"{'Yes' if true else 'No'}, {name} {verb} {value}."
    return Conversation([user(f"{text} Does {name} {base} {guess}?"), assistant(reply)])
