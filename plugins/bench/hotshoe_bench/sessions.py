"""Sessions of agents: a shared prefix, then turns whose context grows, with tool calls between.

A plan says the lengths and pauses of a session, from a seed or from a trace. A session has the
words too. Answers in the context are drawn beforehand and stand in for the server's own, so that
every run of a seed sends the same prompts.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated

import msgspec

from hotshoe.errors import ConfigError
from hotshoe_bench.datasets import Query, Sizes
from hotshoe_bench.prompts import Messages, Prompt, Writer, compose

#: Tokens that all sessions of one load may hold together, about 8 bytes each.
MAX_TOKENS = 50_000_000
MAX_PAUSE_S = 3600.0
#: A line of a trace, for messages.
EXAMPLE = '{"prefix_len": 4096, "turns": [{"input_len": 300, "output_len": 120}]}'

_Length = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request of a session.

    Attributes:
        input_len: Tokens that it adds: the question, or the result of a tool.
        output_len: Tokens to generate.
        pause_s: Seconds between the answer before and this request: the tool call.
    """

    input_len: _Length
    output_len: _Length
    pause_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_PAUSE_S)] = 0.0


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lengths of one session; a line of a trace.

    Attributes:
        prefix_len: Tokens of system prompt and tools; sessions with equal ones share the tokens.
        turns: The requests, in order.
    """

    prefix_len: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
    turns: Annotated[list[Turn], msgspec.Meta(min_length=1)]

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole session."""
        return self.prefix_len + sum(turn.input_len + turn.output_len for turn in self.turns)

    @property
    def contexts(self) -> list[int]:
        """Prompt tokens of each turn."""
        first = self.prefix_len + self.turns[0].input_len
        pairs = zip(self.turns, self.turns[1:], strict=False)
        return list(accumulate((a.output_len + b.input_len for a, b in pairs), initial=first))


@dataclass(frozen=True, slots=True)
class Session:
    """A plan with its words: the prefix, then inputs and answers by turns, an input last."""

    plan: Plan
    prefix: Prompt
    pieces: Sequence[Prompt]

    def query(self, number: int, chat: bool) -> Query:
        """Return the request of a turn, with all that came before it."""
        turn, pieces = self.plan.turns[number], self.pieces[: 2 * number + 1]
        prompt = _messages(self.prefix, pieces) if chat else _joined(self.prefix, pieces)
        return Query(prompt, self.plan.contexts[number], turn.output_len)


def draw_plans(
    count: int, num_turns: int, sizes: Sizes, pause_s: float, rng: random.Random
) -> list[Plan]:
    """Draw plans; pauses follow an exponential distribution of mean `pause_s`."""
    plans = []
    for _ in range(count):
        turns = [
            Turn(
                sizes.draw(sizes.input_len, rng),
                sizes.draw(sizes.output_len, rng),
                min(rng.expovariate(1 / pause_s), MAX_PAUSE_S) if number and pause_s else 0.0,
            )
            for number in range(num_turns)
        ]
        plans.append(Plan(sizes.prefix_len, turns))
    return plans


def read_trace(path: Path) -> list[Plan]:
    """Read a trace: JSON lines, a `Plan` on each.

    Raises:
        ConfigError: The file is unreadable or empty, or a line is no plan.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"--trace: cannot read {path}: {error.strerror}") from None
    decoder, plans = msgspec.json.Decoder(Plan), []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            plans.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(
                f"--trace {path}, line {number}: {error}; a line looks like {EXAMPLE}"
            ) from None
    if not plans:
        raise ConfigError(f"--trace {path} holds no session; a line looks like {EXAMPLE}")
    return plans


def check_size(total: int) -> None:
    """Refuse sessions whose words would fill the memory.

    Raises:
        ConfigError: They have too many tokens.
    """
    if total > MAX_TOKENS:
        raise ConfigError(
            f"the sessions have {total:,} tokens, and the limit is {MAX_TOKENS:,}; "
            "ask for fewer or shorter sessions"
        )


def check_context(plans: Iterable[Plan], context: int | None) -> None:
    """Refuse sessions that outgrow the model: the server would refuse their last turns.

    Args:
        plans: At least one.
        context: Tokens of prompt and answer that the server allows; None if it does not say.

    Raises:
        ConfigError: One does.
    """
    longest = max(plan.num_tokens for plan in plans)
    if context is not None and longest > context:
        raise ConfigError(
            f"a session grows to {longest:,} tokens, and the model's context is {context:,}; lower "
            "--prefix-len, --num-turns, --input-len or --output-len, or give a shorter --trace"
        )


def write_prefixes(plans: Iterable[Plan], writer: Writer, rng: random.Random) -> dict[int, Prompt]:
    """Draw one prefix for each length there is."""
    lengths = sorted({plan.prefix_len for plan in plans})
    return {length: compose(writer, [], length, rng)[0] for length in lengths}


def write_sessions(
    plans: Iterable[Plan], prefixes: dict[int, Prompt], writer: Writer, rng: random.Random
) -> list[Session]:
    """Draw the words of every session."""
    sessions = []
    for plan in plans:
        lengths = [n for turn in plan.turns for n in (turn.input_len, turn.output_len)][:-1]
        pieces = [compose(writer, [], length, rng)[0] for length in lengths]
        sessions.append(Session(plan, prefixes[plan.prefix_len], pieces))
    return sessions


def prefix_share(plans: Iterable[Plan]) -> float:
    """Return the share of all prompt tokens that an earlier prompt began with."""
    known = total = 0
    for plan in plans:
        contexts = plan.contexts
        known += plan.prefix_len + sum(contexts[:-1])
        total += sum(contexts)
    return known / total


def _joined(prefix: Prompt, pieces: Sequence[Prompt]) -> list[int]:
    return [token_id for piece in (prefix, *pieces) for token_id in _ids(piece)]


def _ids(piece: Prompt) -> list[int]:
    assert isinstance(piece, list)
    return piece


def _messages(prefix: Prompt, pieces: Sequence[Prompt]) -> Messages:
    return list(_spoken(prefix, pieces))


def _spoken(prefix: Prompt, pieces: Sequence[Prompt]) -> Iterator[dict[str, str]]:
    if prefix:
        yield {"role": "system", "content": str(prefix)}
    for number, piece in enumerate(pieces):
        yield {"role": ("user", "assistant")[number % 2], "content": str(piece)}
