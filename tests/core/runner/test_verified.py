"""Which steps that verify drafts run as steps that decode, and what they are then."""

import numpy as np
import pytest

from hotshoe.runner.graphs import Recordings
from hotshoe.runner.rows import Rows, StepInputs
from hotshoe.runner.verified import TOKENS, as_decodes, largest_size
from hotshoe.types import NewRow, SamplingParams, StepPlan

LENGTH = 20


def verifying(lags: bool = False, drafts: int = 2) -> StepInputs:
    """Row 4 has no drafts and 6 tokens; row 0 has 4 before its drafts."""
    rows = Rows(6, LENGTH, 4, lags=lags)
    params = SamplingParams()
    prompts = [
        NewRow(4, [9] * 6, 6, 0, [[7, 8]], params, 4),
        NewRow(0, [9] * 4, 4, 0, [[5, 6]], params, 0),
    ]
    rows.advance(StepPlan(0, prompts, [4, 0], [6, 4]))
    named = {"draft_rows": [0], "drafts": [list(range(21, 21 + drafts))]} if drafts else {}
    return rows.advance(StepPlan(1, [], [4, 0], [1, 1 + drafts], **named))


@pytest.fixture
def recordings() -> Recordings:
    found = Recordings((4, 8))
    for size in found.sizes:
        found.keep(size, lambda: None)
    return found


def test_each_token_is_a_request(recordings: Recordings) -> None:
    inputs = verifying()
    assert not inputs.decodes_only
    apart = as_decodes(inputs, recordings, False)
    assert apart.decodes_only
    assert apart.rows.tolist() == [4, 0, 0, 0]
    assert apart.query_start_loc.tolist() == [0, 1, 2, 3, 4]
    assert apart.seq_lens.tolist() == apart.sample_lens.tolist() == [7, 5, 6, 7]
    assert apart.sample_at.tolist() == [0, 1, 2, 3]
    assert all(
        array.dtype == np.int32 for array in (apart.rows, apart.query_start_loc, apart.seq_lens)
    )
    assert apart.slot_mapping is inputs.slot_mapping
    assert not len(apart.spans)
    shared = as_decodes(inputs, recordings, True)
    assert shared.spans.dtype == np.int32
    padded = shared.padded(6, 6, np.array([40], np.int32))
    assert padded.spans.tolist() == [0, 1, *[1, 4] * 3, 4, 5, 5, 6]


def test_other_steps_stay_as_they_are(recordings: Recordings, monkeypatch) -> None:
    """Of one token each, with states behind, longer than a recording, with many keys."""
    for inputs in (verifying(drafts=0), verifying(lags=True), verifying(drafts=7)):
        assert as_decodes(inputs, recordings, False) is inputs
    inputs = verifying()
    assert as_decodes(inputs, Recordings((4, 8)), False) is inputs, "none was made"
    monkeypatch.setattr("hotshoe.runner.verified.KEYS", 6 + 4 + 5 + 6)
    assert as_decodes(inputs, recordings, False) is not inputs, (
        "few tokens may read any number of keys"
    )
    monkeypatch.setattr("hotshoe.runner.verified.TOKENS", 3)
    assert as_decodes(inputs, recordings, False) is inputs
    assert as_decodes(inputs, recordings, True) is not inputs, "keys are read once"
    monkeypatch.setattr("hotshoe.runner.verified.KEYS", 6 + 4 + 5 + 6 + 1)
    assert as_decodes(inputs, recordings, False) is not inputs


def test_few_requests_verify_drafts_in_sizes_of_their_own() -> None:
    assert largest_size(1, 9) == 9
    assert largest_size(2, 300) == largest_size(64, 300) == TOKENS
    assert largest_size(100, 900) == 100
    assert largest_size(0, 9) == 0
