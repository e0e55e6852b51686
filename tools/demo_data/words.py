"""`World`: the seeded source of names, values and choices that every task draws from.

Open-ended values (names, invented words, codes, phrases, tool names) are split by a hash: one in
sixteen is never drawn for training and only drawn for evaluation, so that evaluation asks for
words that the model has not seen as an answer.
"""

import hashlib
import random
import re
import string
from collections.abc import Callable, Sequence
from typing import TypeVar

from demo_data import lexicon as lex

T = TypeVar("T")
Value = str | int | float | bool

_ONSETS = "b br c ch cl d dr f fl g gr h j k kl l m n p pr qu r s sh sl st t th tr v w y z".split()
_VOWELS = "a e i o u a e i o ai ea ee ie oo ou".split()
_CODAS = ["", "", "", "l", "n", "r", "s", "t", "m", "nd", "rk", "st", "x", "ck", "ng", "lm"]


def is_held_out(key: str) -> bool:
    """Say whether a value belongs to evaluation only (one in sixteen, by hash)."""
    return hashlib.blake2b(key.encode(), digest_size=1).digest()[0] % 16 == 0


def with_articles(text: str) -> str:
    """Write `an` where a template put `a` in front of a vowel."""
    return re.sub(r"\b([Aa]) (?=[aeio]\w|u(?!s|ni)\w)", r"\1n ", text)


def spoken(value: Value) -> str:
    """Write a value as people do; truth values in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class World:
    """Random choices for one example, either for training or for evaluation.

    Args:
        rng: Source of randomness; the only state.
        vocabulary: Words of the documentation text, for tasks that copy.
        held_out: Draw open-ended values from the evaluation side of the split.
    """

    def __init__(
        self, rng: random.Random, vocabulary: Sequence[str], held_out: bool = False
    ) -> None:
        self.rng = rng
        self.vocabulary = vocabulary
        self.held_out = held_out
        self.kinds: dict[str, Callable[[], Value]] = {
            "name": self.first_name,
            "full name": self.full_name,
            "city": self.city,
            "place name": lambda: self.fresh(self.invented_name),
            "job": lambda: self.pick(lex.JOBS),
            "colour": lambda: self.pick(lex.COLOURS),
            "animal": lambda: self.pick(lex.ANIMALS),
            "food": lambda: self.pick(lex.FOODS),
            "room": lambda: self.pick(lex.ROOMS),
            "object": lambda: self.pick(lex.OBJECTS),
            "place": lambda: self.pick(lex.PLACES),
            "thing": lambda: self.pick(lex.THINGS),
            "language": lambda: self.pick(lex.LANGUAGES),
            "currency": lambda: self.pick(lex.CURRENCIES),
            "day": lambda: self.pick(lex.DAYS),
            "month": lambda: self.pick(lex.MONTHS),
            "date": self.date,
            "time": self.time,
            "age": lambda: self.number(5, 99),
            "count": lambda: self.number(2, 99),
            "number": self.any_number,
            "year": lambda: self.number(1700, 2030),
            "price": lambda: self.number(1, 999),
            "decimal": self.decimal,
            "code": lambda: self.fresh(self.code),
            "id": lambda: self.number(100, 99999),
            "email": self.email,
            "file": self.file,
            "phrase": self.phrase,
            "word": self.word,
            "flag": lambda: self.chance(0.5),
            "title": lambda: self.phrase().title(),
        }

    def pick(self, items: Sequence[T]) -> T:
        """Pick one item."""
        return items[int(self.rng.random() * len(items))]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """Pick distinct items in random order."""
        return self.rng.sample(items, min(count, len(items)))

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.rng.random() < probability

    def number(self, low: int, high: int) -> int:
        """Draw an integer, both ends included."""
        return low + int(self.rng.random() * (high - low + 1))

    def fresh(self, make: Callable[[], T]) -> T:
        """Draw until the value lies on this world's side of the held-out split."""
        for _ in range(1000):
            value = make()
            if is_held_out(str(value)) == self.held_out:
                return value
        raise ValueError("no value on this side of the held-out split after 1,000 draws")

    def value(self, kind: str) -> Value:
        """Draw a value of a named kind (see `kinds`)."""
        return self.kinds[kind]()

    def distinct(self, kind: str, count: int) -> list[Value]:
        """Draw different values of one kind."""
        found: dict[Value, None] = {}
        while len(found) < count:
            found[self.value(kind)] = None
        return list(found)

    def invented_name(self) -> str:
        """Invent a capitalised name of two or three syllables."""
        parts = (
            self.pick(_ONSETS) + self.pick(_VOWELS) + self.pick(_CODAS)
            for _ in range(self.number(2, 3))
        )
        return "".join(parts).capitalize()

    def city(self) -> str:
        """Draw a city: a known one, one of several words, or an invented one."""
        draw = self.rng.random()
        if draw < 0.7:
            return self.fresh(lambda: self.pick(lex.CITIES))
        if draw < 0.85:
            return self.fresh(lambda: self.pick(lex.LONG_CITIES))
        return self.fresh(self.invented_name)

    def first_name(self) -> str:
        """Draw a first name, one in four invented."""
        return self.fresh(
            lambda: self.invented_name() if self.chance(0.25) else self.pick(lex.FIRST_NAMES)
        )

    def full_name(self) -> str:
        """Draw a first and a last name."""
        return f"{self.first_name()} {self.pick(lex.LAST_NAMES)}"

    def code(self) -> str:
        """Draw a code such as `K7-204` or `xq81f`."""
        style = self.number(0, 3)
        if style == 0:
            letters, digits = self.rng.choices(string.ascii_uppercase, k=2), self.number(10, 9999)
            return "".join(letters) + f"-{digits}"
        if style == 1:
            return "".join(self.rng.choices(string.ascii_lowercase + string.digits, k=6))
        if style == 2:
            return self.pick(string.ascii_uppercase) + str(self.number(10, 999))
        return "".join(self.rng.choices(string.ascii_uppercase, k=self.number(3, 5)))

    def word(self) -> str:
        """Draw a word: of the documentation, of a list, or invented."""
        draw = self.rng.random()
        if draw < 0.6:
            return self.fresh(lambda: self.pick(self.vocabulary))
        if draw < 0.85:
            return self.fresh(lambda: self.pick(lex.OBJECTS + lex.ANIMALS + lex.THINGS))
        return self.fresh(lambda: self.invented_name().lower())

    def words(self, count: int) -> list[str]:
        """Draw different words."""
        found: dict[str, None] = {}
        while len(found) < count:
            found[self.word()] = None
        return list(found)

    def phrase(self) -> str:
        """Draw two to five words, now and then a whole small sentence."""
        if self.chance(0.4):
            subject, thing, place = self.first_name(), self.pick(lex.THINGS), self.pick(lex.PLACES)
            shapes = (
                f"meet {subject} at the {place}",
                f"call {subject} about the {thing}",
                f"the {thing} is at the {place}",
                f"buy {self.pick(lex.FOODS)} and {self.pick(lex.FOODS)}",
                f"bring the {self.pick(lex.OBJECTS)} to {subject}",
                f"I will be late for the {thing}",
                f"the new {thing} of {subject}",
            )
            return self.pick(shapes)
        return " ".join(self.words(self.number(2, 5)))

    def any_number(self) -> int:
        """Draw an integer whose size is spread over one to five digits."""
        return self.number(0, 10 ** self.number(1, 5) - 1)

    def decimal(self) -> float:
        """Draw a number with one or two decimals."""
        return round(self.rng.random() * 10 ** self.number(1, 3), self.number(1, 2))

    def time(self) -> str:
        """Draw a time such as 17:45."""
        return f"{self.number(0, 23)}:{self.number(0, 59):02d}"

    def date(self) -> str:
        """Draw a date, either ISO or as `3 May`."""
        if self.chance(0.5):
            month, day = self.number(1, 12), self.number(1, 28)
            return f"{self.number(1990, 2035)}-{month:02d}-{day:02d}"
        return f"{self.number(1, 28)} {self.pick(lex.MONTHS)}"

    def email(self) -> str:
        """Draw an e-mail address under example domains."""
        host = self.pick(("example.com", "example.org", "example.net"))
        return f"{self.first_name().lower()}@{host}"

    def file(self) -> str:
        """Draw a file name or path."""
        stem, end = self.word(), self.pick("txt md py csv json log pdf png cfg html".split())
        folder = self.pick(("", "", f"{self.pick(lex.THINGS)}/", f"/home/{self.word()}/"))
        return f"{folder}{stem}.{end}"

    def pick_weighted(self, table: Sequence[tuple[float, T]]) -> T:
        """Pick from (weight, item) rows."""
        return self.rng.choices([item for _, item in table], [weight for weight, _ in table])[0]
