"""Batches for the trainer: text rows and freshly generated chat rows, mixed in fixed numbers.

Chat rows come from worker processes; batch number k always holds the conversations of seed k, so
a run does not depend on how many workers there are.
"""

import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from demo_data.packing import Rows, chat_rows, text_rows
from demo_data.prepare import Prepared
from demo_data.tokenizer import END_OF_TEXT
from tokenizers import Tokenizer
from torch import Tensor


@dataclass(frozen=True)
class Plan:
    """Numbers of one training run.

    Attributes:
        steps: Optimiser steps.
        rows: Rows in a batch.
        text_rows: How many of them are documentation text; the rest are conversations.
        length: Tokens in a row.
        chat_weight: Weight of a learned chat token against a text token's 1.
        matrix_rate: Muon's learning rate.
        other_rate: AdamW's learning rate.
        seed: Seed of everything.
    """

    steps: int = 6000
    rows: int = 64
    text_rows: int = 20
    length: int = 2048
    chat_weight: float = 2.0
    matrix_rate: float = 0.02
    other_rate: float = 3e-3
    seed: int = 1


@cache
def _loaded(folder: Path) -> tuple[Tokenizer, list[str]]:
    """Read tokenizer and word list once in each worker process."""
    prepared = Prepared(folder)
    return prepared.tokenizer, prepared.vocabulary


def _chat(seed: int, folder: Path, count: int, length: int) -> Rows:
    return chat_rows(*_loaded(folder), seed, count, length)


def _epochs(rows: Rows, count: int, seed: int) -> Iterator[Rows]:
    """Yield `count` text rows at a time, in a new order each epoch."""
    epoch = 0
    while True:
        order = np.random.default_rng((seed, epoch)).permutation(len(rows.tokens))
        for start in range(0, len(order) - count + 1, count):
            chosen = order[start : start + count]
            yield Rows(rows.tokens[chosen], rows.learned[chosen])
        epoch += 1


def batches(prepared: Prepared, plan: Plan, workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (tokens, weights), each `[rows, length + 1]`, int32 and float32, on the CPU."""
    end = prepared.tokenizer.token_to_id(END_OF_TEXT)
    texts = _epochs(text_rows(prepared.text_stream, plan.length + 1), plan.text_rows, plan.seed)
    context = multiprocessing.get_context("spawn")
    chat_count = plan.rows - plan.text_rows
    work = partial(_chat, folder=prepared.folder, count=chat_count, length=plan.length + 1)
    with context.Pool(workers) as pool:
        seeds = range(plan.seed * 1_000_000, plan.seed * 1_000_000 + plan.steps)
        for chat in pool.imap(work, seeds):
            text = next(texts)
            tokens = np.concatenate((text.tokens, chat.tokens)).astype(np.int32)
            weights = np.concatenate((text.learned * 1.0, chat.learned * plan.chat_weight))
            weights[:, 1:][tokens[:, :-1] == end] = 0.0
            yield torch.from_numpy(tokens), torch.from_numpy(weights.astype(np.float32))
