"""Changes to logits before a token is chosen: penalties, bias, and tokens that may not come.

A stage is planned for a batch of rows, once as long as the batch stays the same, and then applied
in place at every step. It touches only the rows that use it, and within them, where possible, only
the entries that change. `plan` returns None when no row uses a stage. Used by `Sampler`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hotshoe.sampling.rows import Ints, RowParameters, place

NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a batch. `at` indexes a batch: 0 <= at < n; `rows` the token table.

    Attributes:
        num_tokens: [n] int64 on the host, tokens known before this sample.
        token_table: [max_num_seqs, max_model_len + 1] integer, on the device.
        blamed: Why rows fail, by row; stages fill it in.
    """

    num_tokens: Ints
    token_table: Tensor
    blamed: dict[int, str] = field(default_factory=dict)


class Stage(Protocol):
    """A planned change of logits."""

    def apply(self, logits: Tensor, step: Step) -> None:
        """Change logits [n, vocab_size] float32 in place."""
        ...


@dataclass(frozen=True, slots=True)
class Penalties:
    """Repetition (prompt and output), presence and frequency (output) penalties of m rows.

    Tokens that do not count are replaced by the row's last token, which does count as soon as
    there is any output; writing an entry twice then writes the same value. No vocabulary-wide
    counts are needed.

    Attributes:
        at: [m] batch positions on the host, on the device as `at_device` [m, 1].
        rows: [m, 1] on the device.
        repetition, presence, frequency: [m, 1] float32, on the device; None when no row uses it.
    """

    at: Ints
    num_prompt_tokens: Ints
    at_device: Tensor
    rows: Tensor
    repetition: Tensor | None
    presence: Tensor | None
    frequency: Tensor | None

    @classmethod
    def plan(cls, params: RowParameters, rows: Ints, device: torch.device) -> Penalties | None:
        used = {
            "repetition": params.repetition_penalty[rows] != 1,
            "presence": params.presence_penalty[rows] != 0,
            "frequency": params.frequency_penalty[rows] != 0,
        }
        at = np.flatnonzero(np.logical_or.reduce(list(used.values())))
        if not at.size:
            return None
        picked = rows[at]

        def column(values: npt.NDArray[np.generic]) -> Tensor:
            return place(values, device)[:, None]

        return cls(
            at,
            params.num_prompt_tokens[picked],
            column(at),
            column(picked),
            **{
                name: column(getattr(params, f"{name}_penalty")[picked]) if mask.any() else None
                for name, mask in used.items()
            },
        )

    def apply(self, logits: Tensor, step: Step) -> None:
        ends = step.num_tokens[self.at]
        begin = 0 if self.repetition is not None else int(self.num_prompt_tokens.min())
        begin = min(begin, int(ends.min()) - 1)
        bounds = np.stack([self.num_prompt_tokens, ends]) - begin
        prompt_end, end = place(bounds, logits.device)[:, :, None]
        tokens = step.token_table[self.rows, _span(begin, int(ends.max()), logits.device)].long()
        columns = _span(0, tokens.shape[1], logits.device)
        last = tokens.gather(1, end - 1)
        if self.repetition is not None:
            self._repetition(logits, tokens.where(columns < end, last), self.repetition)
        is_output = (columns >= prompt_end) & (columns < end)
        outputs = tokens.where(is_output, last)
        if self.presence is not None:
            found = logits[self.at_device, outputs]
            logits[self.at_device, outputs] = found - self.presence * (end > prompt_end)
        if self.frequency is not None:
            amounts = -self.frequency * is_output
            logits.index_put_((self.at_device, outputs), amounts, accumulate=True)

    def _repetition(self, logits: Tensor, tokens: Tensor, penalty: Tensor) -> None:
        found = logits[self.at_device, tokens]
        logits[self.at_device, tokens] = torch.where(found > 0, found / penalty, found * penalty)


def _span(begin: int, end: int, device: torch.device) -> Tensor:
    return torch.arange(begin, end, device=device)[None, :]


@dataclass(frozen=True, slots=True)
class Entries:
    """Flat coordinates of logits: `at[i]`, `token_ids[i]`, both [k] on the device."""

    at: Tensor
    token_ids: Tensor

    @classmethod
    def of(cls, at: Ints, lists: Sequence[Ints], device: torch.device) -> Entries:
        """Join the token ids lists[i] of the batch positions at[i]."""
        repeated = np.repeat(at, [len(ids) for ids in lists])
        joined = np.concatenate(lists)
        return cls(place(repeated, device), place(joined, device))


@dataclass(frozen=True, slots=True)
class LogitBias:
    """Adds a value to single logits."""

    entries: Entries
    values: Tensor

    @classmethod
    def plan(cls, params: RowParameters, rows: Ints, device: torch.device) -> LogitBias | None:
        at = np.flatnonzero(params.users["bias_ids"][rows])
        if not at.size:
            return None
        lists = [params.lists[row] for row in rows[at]]
        values = np.concatenate([x.bias_values for x in lists])
        entries = Entries.of(at, [x.bias_ids for x in lists], device)
        return cls(entries, place(values, device))

    def apply(self, logits: Tensor, step: Step) -> None:
        logits[self.entries.at, self.entries.token_ids] += self.values


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """Leaves only the listed tokens of some rows."""

    entries: Entries
    at: Tensor

    @classmethod
    def plan(cls, params: RowParameters, rows: Ints, device: torch.device) -> AllowedTokens | None:
        at = np.flatnonzero(params.users["allowed_ids"][rows])
        if not at.size:
            return None
        entries = Entries.of(at, [params.lists[row].allowed_ids for row in rows[at]], device)
        return cls(entries, place(at, device))

    def apply(self, logits: Tensor, step: Step) -> None:
        coordinates = (self.entries.at, self.entries.token_ids)
        kept = logits[coordinates]
        logits.index_fill_(0, self.at, NEVER)
        logits[coordinates] = kept


@dataclass(frozen=True, slots=True)
class BadWords:
    """Forbids the last token of each sequence wherever the others come just before it.

    The t tokens that must come before are flat, so that one long sequence costs only itself.

    Attributes:
        at: [k] batch position of each sequence, on the host; `entries` its last token.
        heads: [t] tokens before the last ones, `owners` [t] the sequences they belong to.
        offsets: [t] where a head lies, counted from the end of the known tokens; negative.
        rows: [t] in the token table.
    """

    at: Ints
    entries: Entries
    heads: Tensor
    owners: Tensor
    offsets: Tensor
    rows: Tensor

    @classmethod
    def plan(cls, params: RowParameters, rows: Ints, device: torch.device) -> BadWords | None:
        users = np.flatnonzero(params.users["bad_words"][rows])
        if not users.size:
            return None
        words = [(at, word) for at in users for word in params.lists[rows[at]].bad_words]
        at = np.array([at for at, _ in words])
        entries = Entries.of(at, [np.array(word[-1:]) for _, word in words], device)
        lengths = [len(word) - 1 for _, word in words]
        owners = np.repeat(np.arange(len(words)), lengths)
        heads = np.array([token for _, word in words for token in word[:-1]], np.int64)
        offsets = np.concatenate([np.arange(-length, 0) for length in lengths])
        flat = (place(x, device) for x in (heads, owners, offsets, rows[at[owners]]))
        return cls(at, entries, *flat)

    def apply(self, logits: Tensor, step: Step) -> None:
        ends = place(step.num_tokens[self.at], logits.device)
        places = ends[self.owners] + self.offsets
        tokens = step.token_table[self.rows, places.clamp(min=0)]
        missed = ((tokens != self.heads) | (places < 0)).int()
        num_missed = torch.zeros_like(ends).int().index_add_(0, self.owners, missed)
        # Adding keeps a token forbidden that ends two sequences of which one matches.
        amounts = torch.where(num_missed == 0, NEVER, 0.0)
        logits.index_put_((self.entries.at, self.entries.token_ids), amounts, accumulate=True)


@dataclass(slots=True)
class MinTokens:
    """Forbids end-of-sequence and stop tokens in rows that are still too short.

    Attributes:
        at, min_length, ending_ids: [m] each, on the host.
        short: Bit pattern of the rows that were too short at the last step; `entries` is theirs.
    """

    at: Ints
    min_length: Ints
    ending_ids: list[Ints]
    device: torch.device
    short: bytes = b""
    entries: Entries | None = None

    @classmethod
    def plan(cls, params: RowParameters, rows: Ints, device: torch.device) -> MinTokens | None:
        at = np.flatnonzero(params.users["ending_ids"][rows])
        if not at.size:
            return None
        ending = [params.lists[row].ending_ids for row in rows[at]]
        return cls(at, params.min_length[rows[at]], ending, device)

    def apply(self, logits: Tensor, step: Step) -> None:
        short = step.num_tokens[self.at] < self.min_length
        if short.tobytes() != self.short:
            self.short = short.tobytes()
            lists = [ids for ids, is_short in zip(self.ending_ids, short, strict=True) if is_short]
            self.entries = Entries.of(self.at[short], lists, self.device) if lists else None
        if self.entries is not None:
            # A Python number would be copied to the device, and the host would wait for that.
            never = logits.new_full((), NEVER)
            logits.index_put_((self.entries.at, self.entries.token_ids), never)


Planner: TypeAlias = Callable[[RowParameters, Ints, torch.device], Stage | None]
#: In order of application: values change first, then whatever is forbidden stays so.
CHANGING: tuple[Planner, ...] = (Penalties.plan, LogitBias.plan)
FORBIDDING: tuple[Planner, ...] = (AllowedTokens.plan, BadWords.plan, MinTokens.plan)


def plan_stages(
    params: RowParameters, rows: Ints, device: torch.device, more: Sequence[Planner] = ()
) -> list[Stage]:
    """Plan the stages that a batch needs; `more` change values. Plain rows need none."""
    planned = (plan(params, rows, device) for plan in (*CHANGING, *more, *FORBIDDING))
    return [stage for stage in planned if stage is not None]
