"""Parameters per row: nothing of a row's last request is left when it is set anew."""

import numpy as np

from hotshoe.sampling.rows import RowParameters
from hotshoe.types import NewRow, SamplingParams


def new_row(params, num_prompt=5, seed=2**63 - 1):
    return NewRow(1, list(range(num_prompt)), num_prompt, 0, [], params, seed)


RICH = SamplingParams(
    temperature=0.5,
    top_k=-1,
    top_p=0.5,
    min_p=0.1,
    repetition_penalty=1.5,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    logit_bias={2: 1.5, 900: 1.0},
    allowed_token_ids=(3, 1, 3, 900),
    min_tokens=4,
    stop_token_ids=(7, 900),
    bad_words_token_ids=((1, 2), (900, 1)),
    logprobs=2,
    extra_args={"a": 1},
    logprob_token_ids=(3, 1, 3, 900),
)


def snapshot(rows):
    arrays = {k: v.tolist() for k, v in vars(rows).items() if isinstance(v, np.ndarray)}
    lists = [[np.asarray(getattr(x, f)).tolist() for f in rows.users] for x in rows.lists]
    return arrays, lists, {k: v.tolist() for k, v in rows.users.items()}


def test_values_of_a_row():
    rows = RowParameters(3, vocab_size=10)
    rows.set_row(new_row(RICH), eos_token_ids=(9,))
    assert (rows.top_k[1], rows.seed[1], rows.num_logprobs[1]) == (0, 2**63 - 1, 2)
    assert (rows.num_prompt_tokens[1], rows.min_length[1]) == (5, 9)
    lists = rows.lists[1]
    assert lists.bias_ids.tolist() == [2] and lists.bias_values.tolist() == [1.5]
    assert lists.allowed_ids.tolist() == [1, 3] and lists.ending_ids.tolist() == [7, 9]
    assert lists.bad_words == ((1, 2),) and lists.logprob_ids.tolist() == [3, 1, 3]
    assert all(users.tolist() == [False, True, False] for users in rows.users.values())


def test_a_plain_request_leaves_a_plain_row():
    plain = SamplingParams(stop_token_ids=(7,))
    fresh, reused = RowParameters(3, 10), RowParameters(3, 10)
    reused.set_row(new_row(RICH), (9,))
    for rows in (fresh, reused):
        rows.set_row(new_row(plain, seed=3), (9,))
    assert snapshot(fresh) == snapshot(reused)
    assert not any(users.any() for users in fresh.users.values())


def test_only_what_would_end_the_text_is_kept_from_it():
    rows = RowParameters(3, 10)
    for params, ending in (
        (SamplingParams(min_tokens=1, stop_token_ids=(7,)), [7, 9]),
        (SamplingParams(min_tokens=1, stop_token_ids=(7,), ignore_eos=True), [7]),
        (SamplingParams(min_tokens=1, ignore_eos=True), []),
        (SamplingParams(stop_token_ids=(7,)), []),
    ):
        rows.set_row(new_row(params), (9,))
        assert rows.lists[1].ending_ids.tolist() == ending
