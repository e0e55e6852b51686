"""Sums, differences, products, comparisons and counting, asked in many ways.

Two-digit additions are split: one pair in sixteen is only asked in evaluation.
"""

from demo_data import lexicon as lex
from demo_data.chat import Conversation, assistant, user
from demo_data.words import World

_ASK = (
    "What is {a} {op} {b}?",
    "What's {a} {op} {b}?",
    "{a} {op} {b}",
    "{a}{op}{b}",
    "{a} {op} {b} = ?",
    "{a} {op} {b} =",
    "{a}{op}{b}=",
    "Calculate {a} {op} {b}.",
    "Compute {a} {op} {b}",
    "Please compute {a} {op} {b}.",
    "Can you tell me what {a} {op} {b} is?",
    "How much is {a} {op} {b}?",
    "Do you know {a} {op} {b}?",
    "Solve {a} {op} {b}.",
    "Tell me the result of {a} {op} {b}.",
)
_WORDED = {
    "+": (
        "What is {a} plus {b}?",
        "How much is {a} plus {b}?",
        "Add {a} and {b}.",
        "Add {b} to {a}.",
        "What is the sum of {a} and {b}?",
        "{a} plus {b}",
        "What do you get when you add {a} and {b}?",
    ),
    "-": (
        "What is {a} minus {b}?",
        "Subtract {b} from {a}.",
        "What is the difference between {a} and {b}?",
        "Take {b} away from {a}.",
        "{a} minus {b}",
    ),
    "*": (
        "What is {a} times {b}?",
        "Multiply {a} by {b}.",
        "What is the product of {a} and {b}?",
        "{a} times {b}",
    ),
    "/": ("What is {a} divided by {b}?", "Divide {a} by {b}.", "{a} divided by {b}"),
}
_ONLY = (" Answer with the number only.", " Only the number.", " Just give me the number.")
_SIGNS = {"*": ("*", "x", "×"), "/": ("/", "÷"), "+": ("+",), "-": ("-",)}


def addition_pair(world: World, high: int = 99, low: int = 0) -> tuple[int, int]:
    """Draw two numbers whose pair, in either order, lies on the world's side of the split."""

    def ordered() -> tuple[int, int]:
        a, b = world.number(low, high), world.number(low, high)
        return min(a, b), max(a, b)

    a, b = world.fresh(ordered)
    return (a, b) if world.chance(0.5) else (b, a)


def _operands(world: World) -> tuple[int, str, int, int]:
    draw = world.rng.random()
    if draw < 0.45:
        a, b = addition_pair(world)
        return a, "+", b, a + b
    if draw < 0.65:
        b, a = sorted(addition_pair(world))
        return a, "-", b, a - b
    if draw < 0.80:
        a, b = world.number(0, 12), world.number(0, 12)
        return a, "*", b, a * b
    if draw < 0.90:
        a, b = world.number(0, 12), world.number(1, 12)
        return a * b, "/", b, a
    a, b = addition_pair(world, 999)
    return a, "+", b, a + b


def _answer(world: World, question: str, a: int, sign: str, b: int, result: int) -> Conversation:
    if world.chance(0.25):
        return Conversation([user(question + world.pick(_ONLY)), assistant(str(result))])
    return Conversation([user(question), assistant(f"{a} {sign} {b} = {result}")])


def calculation(world: World) -> Conversation:
    """Ask for one result; answer `a + b = c`, or the bare number when asked to."""
    a, sign, b, result = _operands(world)
    if world.chance(0.35):
        question = world.pick(_WORDED[sign]).format(a=a, b=b)
    else:
        question = world.pick(_ASK).format(a=a, op=world.pick(_SIGNS[sign]), b=b)
    return _answer(world, question, a, sign, b, result)


_NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()


def small_sum(world: World) -> Conversation:
    """Ask with number words, or for the sum of three small numbers."""
    (a, b), c = addition_pair(world, 20), world.number(0, 20)
    if world.chance(0.5):
        question = world.pick(
            ("What is {a} + {b} + {c}?", "{a} + {b} + {c}", "Add {a}, {b} and {c}.")
        )
        answer = f"{a} + {b} + {c} = {a + b + c}"
        return Conversation([user(question.format(a=a, b=b, c=c)), assistant(answer)])
    sign, (a, b) = world.pick((("+", (a, b)), ("-", (max(a, b), min(a, b)))))
    template = world.pick(_WORDED[sign])
    question = template.format(a=_NUMBER_WORDS[a], b=_NUMBER_WORDS[b])
    result = a + b if sign == "+" else a - b
    return Conversation([user(question), assistant(f"{a} {sign} {b} = {result}")])


def addition(world: World) -> Conversation:
    """Ask for the sum of two numbers below 100."""
    a, b = addition_pair(world)
    templates = _WORDED["+"] if world.chance(0.4) else _ASK
    question = world.pick(templates).format(a=a, op="+", b=b)
    return _answer(world, question, a, "+", b, a + b)


def column_addition(world: World) -> Conversation:
    """Add numbers of up to five digits with the working written down as a thought."""
    high = 10 ** world.number(2, 5) - 1
    a, b = addition_pair(world, high)
    steps, carry = [], 0
    digits = max(len(str(a)), len(str(b)))
    for place in range(digits):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry
        plus = f" + {carry}" if carry else ""
        carry, written = divmod(total, 10)
        note = f", write {written}, carry 1" if carry else f", write {written}"
        steps.append(f"{x} + {y}{plus} = {total}{note}.")
    if carry:
        steps.append("Write 1.")
    question = world.pick(_ASK + _WORDED["+"]).format(a=a, op="+", b=b)
    answer = assistant(f"{a} + {b} = {a + b}")
    return Conversation([user(question), answer], thought="\n".join(steps))


def story_problem(world: World) -> Conversation:
    """Ask a one-step word problem; the answer shows the calculation."""
    a, b = addition_pair(world, 50)
    who, other = world.distinct("name", 2)
    what = world.pick([w for w in lex.FOODS if w.endswith("s")])
    if world.chance(0.5):
        story = world.pick(
            (
                f"{who} has {a} {what} and gets {b} more. How many {what} does {who} have now?",
                f"{who} has {a} {what}. {other} gives {who} {b} more. How many {what} are there?",
                f"There are {a} {what} in one bag and {b} in another. How many {what} in all?",
                f"{who} buys {a} {what} on Monday and {b} on Tuesday. How many {what} in total?",
            )
        )
        return Conversation([user(story), assistant(f"{a} + {b} = {a + b} {what}.")])
    a, b = max(a, b), min(a, b)
    story = world.pick(
        (
            f"{who} has {a} {what} and eats {b}. How many {what} are left?",
            f"{who} has {a} {what}. {who} gives {b} to {other}. How many {what} does {who} keep?",
            f"There are {a} {what} in a box. {other} takes {b}. How many {what} remain?",
        )
    )
    return Conversation([user(story), assistant(f"{a} - {b} = {a - b} {what}.")])


def comparison(world: World) -> Conversation:
    """Ask which number is larger or smaller, or the extreme of a short list."""
    if world.chance(0.5):
        a, b = world.distinct("number", 2)
        larger = world.chance(0.5)
        word = world.pick(("larger", "bigger", "greater") if larger else ("smaller", "less"))
        question = world.pick(("Which is {w}, {a} or {b}?", "Which number is {w}: {a} or {b}?"))
        result = max(a, b) if larger else min(a, b)  # type: ignore[type-var]
        return Conversation(
            [user(question.format(w=word, a=a, b=b)), assistant(f"{result} is {word}.")]
        )
    numbers = world.distinct("count", world.number(3, 6))
    largest = world.chance(0.5)
    word = "largest" if largest else "smallest"
    listed = ", ".join(map(str, numbers))
    question = world.pick(
        ("What is the {w} of {n}?", "Find the {w} number: {n}", "Which is the {w}: {n}?")
    ).format(w=word, n=listed)
    result = max(numbers) if largest else min(numbers)  # type: ignore[type-var]
    return Conversation([user(question), assistant(f"The {word} number is {result}.")])


def counting(world: World) -> Conversation:
    """Count up, count down, continue a sequence, or name a number's neighbour or parity."""
    kind = world.number(0, 4)
    if kind == 0:
        low = 1 if world.chance(0.7) else world.number(0, 60)
        high = low + world.number(2, 19)
        question = world.pick(("Count from {a} to {b}.", "Please count from {a} to {b}"))
        answer = ", ".join(map(str, range(low, high + 1)))
        return Conversation([user(question.format(a=low, b=high)), assistant(answer)])
    if kind == 1:
        high = world.number(3, 15)
        answer = ", ".join(map(str, range(high, 0, -1)))
        return Conversation([user(f"Count down from {high} to 1."), assistant(answer)])
    if kind == 2:
        start, step = world.number(0, 30), world.pick((1, 2, 3, 5, 10))
        shown = [start + step * i for i in range(5)]
        question = f"Which number comes next: {', '.join(map(str, shown[:4]))}?"
        return Conversation([user(question), assistant(f"The next number is {shown[4]}.")])
    n = world.number(0, 998)
    if kind == 3:
        word = "odd" if n % 2 else "even"
        return Conversation([user(f"Is {n} even or odd?"), assistant(f"{n} is {word}.")])
    after = world.chance(0.6) or n == 0
    question = world.pick(("What comes {w} {n}?", "Which number comes {w} {n}?"))
    result = n + 1 if after else n - 1
    word = "after" if after else "before"
    return Conversation(
        [user(question.format(w=word, n=n)), assistant(f"{result} comes {word} {n}.")]
    )
