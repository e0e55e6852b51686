"""What each persistent row wants sampled: parameter arrays on the host, one entry per row.

Written by `Sampler.set_row` when a row starts or resumes; read when a batch of rows is planned.
Holds request constants only: everything that changes per token is derived from the token table.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hotshoe.types import NewRow, SamplingParams

Ints = npt.NDArray[np.int64]
#: Lines of packed numbers begin at multiples of 16 bytes: kernels are compiled for such addresses.
_ALIGNED = 4
#: Fields of `RowLists` that change logits.
_CHANGING = ("bias_ids", "allowed_ids", "ending_ids", "bad_words", "extra_args")
#: The parameters of a request that its `RowLists` are made of.
_ENTRIES = attrgetter(
    *("logit_bias", "allowed_token_ids", "min_tokens", "logprob_token_ids"),
    *("bad_words_token_ids", "extra_args"),
)


def place(array: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """Copy an array to the device without waiting for what the device is doing."""
    return torch.from_numpy(array).to(device, non_blocking=True)


def packed_width(num_rows: int) -> int:
    """Return how many numbers a line of packed ones has for so many rows."""
    return -(-num_rows // _ALIGNED) * _ALIGNED


def arguments_of(packed: Tensor, num_rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return views of packed numbers [num_rows], each with its type."""
    temperature, top_k, top_p, min_p = packed[:, :num_rows].unbind()
    return temperature, top_k.view(torch.int32), top_p, min_p


@dataclass(frozen=True, slots=True)
class RowLists:
    """The parameters of one row that have entries; all ids lie below the vocabulary size."""

    bias_ids: Ints
    bias_values: npt.NDArray[np.float32]
    allowed_ids: Ints
    ending_ids: Ints
    logprob_ids: Ints
    bad_words: tuple[tuple[int, ...], ...]
    extra_args: Mapping[str, Any]


_NONE = np.zeros(0, np.int64)
#: Of a row whose parameters have no entries, as most are.
NO_LISTS = RowLists(_NONE, _NONE.astype(np.float32), _NONE, _NONE, _NONE, (), {})


class RowParameters:
    """Parameters of `max_num_seqs` rows. Scalars are arrays, so that a batch is one gather each."""

    def __init__(self, max_num_seqs: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        #: [4, rows] of 32 bits: those of `SampleOp`, in its order, so that all are one gather.
        self.arguments = np.zeros((4, max_num_seqs), np.float32)
        self.temperature, _, self.top_p, self.min_p = self.arguments
        self.top_k = self.arguments[1].view(np.int32)
        self.top_p[:] = 1
        self.repetition_penalty = np.ones(max_num_seqs, np.float32)
        self.presence_penalty = np.zeros(max_num_seqs, np.float32)
        self.frequency_penalty = np.zeros(max_num_seqs, np.float32)
        self.seed = np.zeros(max_num_seqs, np.uint64)
        self.num_prompt_tokens = np.zeros(max_num_seqs, np.int64)
        #: Tokens that a row must have, prompt included, before it may end.
        self.min_length = np.zeros(max_num_seqs, np.int64)
        #: Number of most likely tokens to report; -1 reports nothing.
        self.num_logprobs = np.full(max_num_seqs, -1, np.int64)
        self.lists = [NO_LISTS] * max_num_seqs
        #: Which rows want logits changed before a token is chosen.
        self.changes = np.zeros(max_num_seqs, np.bool_)
        #: Which rows have a list that is not empty, by field of `RowLists`.
        self.users = {f.name: np.zeros(max_num_seqs, np.bool_) for f in fields(RowLists)}

    def set_row(self, new: NewRow, eos_token_ids: Sequence[int]) -> None:
        """Replace everything known about `new.row`."""
        row, params = new.row, new.params
        self.temperature[row] = params.temperature
        self.top_k[row] = max(params.top_k, 0)
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.repetition_penalty[row] = params.repetition_penalty
        self.presence_penalty[row] = params.presence_penalty
        self.frequency_penalty[row] = params.frequency_penalty
        self.seed[row] = new.seed
        self.num_prompt_tokens[row] = new.num_prompt_tokens
        self.min_length[row] = new.num_prompt_tokens + params.min_tokens
        self.num_logprobs[row] = -1 if params.logprobs is None else params.logprobs
        lists = self._lists(params, eos_token_ids)
        if lists is not NO_LISTS or self.lists[row] is not NO_LISTS:
            for name, users in self.users.items():
                users[row] = len(getattr(lists, name)) > 0
        self.lists[row] = lists
        penalties = params.presence_penalty, params.frequency_penalty
        listed = lists is not NO_LISTS and any(self.users[name][row] for name in _CHANGING)
        self.changes[row] = listed or any(penalties) or params.repetition_penalty != 1

    def packed(self, rows: Ints) -> npt.NDArray[np.float32]:
        """Return [4, w >= n] of 32 bits: temperature, top_k, top_p and min_p of rows [n]."""
        numbers = np.zeros((4, packed_width(len(rows))), np.float32)
        numbers[:, : len(rows)] = self.arguments[:, rows]
        return numbers

    def _lists(self, params: SamplingParams, eos_token_ids: Sequence[int]) -> RowLists:
        if not any(_ENTRIES(params)):
            return NO_LISTS
        bias = {t: b for t, b in params.logit_bias.items() if t < self.vocab_size}
        eos = () if params.ignore_eos else eos_token_ids
        ending = (*eos, *params.stop_token_ids) if params.min_tokens else ()
        return RowLists(
            bias_ids=np.fromiter(bias.keys(), np.int64),
            bias_values=np.fromiter(bias.values(), np.float32),
            allowed_ids=self._known(params.allowed_token_ids),
            ending_ids=self._known(ending),
            logprob_ids=np.array(
                [t for t in params.logprob_token_ids if t < self.vocab_size], np.int64
            ),
            bad_words=tuple(
                word for word in params.bad_words_token_ids if max(word) < self.vocab_size
            ),
            extra_args=params.extra_args,
        )

    def _known(self, token_ids: Iterable[int]) -> Ints:
        return np.array(sorted({t for t in token_ids if t < self.vocab_size}), np.int64)
