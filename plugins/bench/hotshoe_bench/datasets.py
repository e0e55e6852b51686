"""What is asked: random prompts, prompts with shared prefixes, or recorded conversations.

All requests are made before the first is sent, from one seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotshoe.errors import ConfigError
from hotshoe.text.tokenizer import Tokenizer
from hotshoe_bench.prompts import Messages, Prompt, Writer, compose


@dataclass(frozen=True, slots=True)
class Query:
    """One request: the prompt, its length, and the length of the answer, in tokens."""

    prompt: Prompt | Messages
    input_len: int
    output_len: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """Lengths of random prompts and their answers.

    Attributes:
        input_len: Random tokens of a prompt, behind the shared prefix.
        output_len: Tokens to generate.
        range_ratio: Both lengths are drawn evenly from length · (1 ± ratio); 0 is exact.
        prefix_len: Tokens of a shared prefix.
        num_prefixes: How many prefixes there are; prompts use them in turn.

    Raises:
        ConfigError: A value is out of range.
    """

    input_len: int
    output_len: int
    range_ratio: float = 0.0
    prefix_len: int = 0
    num_prefixes: int = 1

    def __post_init__(self) -> None:
        lows = {"input_len": 1, "output_len": 1, "prefix_len": 0, "num_prefixes": 1}
        for name, low in lows.items():
            if getattr(self, name) < low:
                flag = "--" + name.replace("_", "-")
                raise ConfigError(f"{flag} must be at least {low}, not {getattr(self, name)}")
        if not 0 <= self.range_ratio < 1:
            raise ConfigError(f"--range-ratio must be from 0 to below 1, not {self.range_ratio}")

    def draw(self, length: int, rng: random.Random) -> int:
        """Return a length around the given one, at least 1."""
        spread = int(length * self.range_ratio)
        return max(1, rng.randint(length - spread, length + spread))


def random_queries(count: int, sizes: Sizes, writer: Writer, rng: random.Random) -> Iterator[Query]:
    """Make random prompts, with shared prefixes where `sizes` asks for them."""
    prefixes = [writer.draw(sizes.prefix_len, rng) for _ in range(sizes.num_prefixes)]
    for number in range(count):
        prefix = prefixes[number % len(prefixes)]
        prompt, length = compose(writer, prefix, sizes.draw(sizes.input_len, rng), rng)
        yield Query(prompt, length, sizes.draw(sizes.output_len, rng))


def conversation_queries(
    path: Path, count: int, tokenizer: Tokenizer, output_len: int | None, rng: random.Random
) -> list[Query]:
    """Take the first question of recorded conversations, in random order, again where too few.

    Args:
        path: A JSON list of `{"conversations": [{"from": "human", "value": "..."}, ...]}`, as
            ShareGPT has them; entries without a question and an answer are passed over.
        count: Number of queries.
        tokenizer: Counts tokens of question and answer.
        output_len: Tokens to generate; None takes the length of the recorded answer.
        rng: Where the order comes from.

    Raises:
        ConfigError: The file is unreadable, or holds no conversation.
    """
    pairs = [pair for entry in _read_list(path) if (pair := _first_turns(entry)) is not None]
    if not pairs:
        raise ConfigError(f"{path} holds no conversation with a question and an answer")
    rng.shuffle(pairs)
    queries = []
    for question, answer in pairs[:count]:
        expected = output_len or max(1, len(tokenizer.encode(answer, add_special_tokens=False)))
        length = len(tokenizer.encode(question, add_special_tokens=False))
        queries.append(Query(question, length, expected))
    return [queries[number % len(queries)] for number in range(count)]


def _read_list(path: Path) -> list[Any]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    if not isinstance(entries, list):
        raise ConfigError(f"{path} must hold a JSON list of conversations")
    return entries


def _first_turns(entry: Any) -> tuple[str, str] | None:
    """Return what was asked first and what was answered."""
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    if not isinstance(turns, list) or len(turns) < 2:
        return None
    question, answer = (turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2])
    if isinstance(question, str) and isinstance(answer, str) and question and answer:
        return question, answer
    return None
