"""Steps that verify drafts, run as steps that decode, so that recordings of whole steps serve them.

All keys and values of a step are written before any are read, and each token reads those up to its
own. So a token of such a step is a request of one token, whatever other tokens its request has.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hotshoe.runner.graphs import Recordings
from hotshoe.runner.rows import StepInputs

#: Tokens for which sizes are recorded beyond the number of requests, where each token reads keys
#: of its own. Up to so many, a whole recording was faster wherever it was measured.
TOKENS = 64
#: Keys that the tokens of a larger step read together. With more, attention that reads the keys of
#: a request once for all its tokens saves more than a whole recording does.
KEYS = 1 << 16


def largest_size(num_reqs: int, num_tokens: int) -> int:
    """Return the largest size to record, for steps that decode so many requests, 0 for none, and
    steps that verify so many tokens."""
    return num_reqs and max(num_reqs, min(num_tokens, TOKENS))


def as_decodes(inputs: StepInputs, recordings: Recordings, shared: bool) -> StepInputs:
    """Return a step as one that decodes if a recording holds it, and else as it is.

    Only a step whose requests sample after each of their tokens, and have no states that are
    behind, can be had so. Where drafts are trees, tokens read more than those before them.

    Args:
        shared: Attention reads the keys of a sequence once for several of these requests, and is
            told which they are.
    """
    count = len(inputs.positions)
    if inputs.tree is not None or inputs.drafts is not None:
        return inputs
    if not len(inputs.rows) < count == len(inputs.sample_at):
        return inputs
    if recordings.size_for(count) is None:
        return inputs
    if not shared and count > TOKENS and int(inputs.positions.sum()) >= KEYS:
        return inputs
    counts = np.diff(inputs.query_start_loc)
    starts = inputs.query_start_loc
    spans = np.stack([starts[:-1], starts[1:]], axis=1).repeat(counts, axis=0).reshape(-1)
    return replace(
        inputs,
        rows=np.repeat(inputs.rows, counts),
        query_start_loc=np.arange(count + 1, dtype=np.int32),
        seq_lens=inputs.positions + 1,
        spans=spans if shared else inputs.spans,
    )
