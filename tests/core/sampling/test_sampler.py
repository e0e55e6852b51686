"""The sampler against a row-by-row float64 oracle, and its independence of batch composition."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from hotshoe.sampling import Sampler
from hotshoe.sampling.uniform import uniforms
from hotshoe.slots.reference.sampling import build
from hotshoe.slots.specs import SampleSpec
from hotshoe.types import NewRow, SamplingParams

VOCAB, ROWS, LENGTH = 50, 12, 40
EOS = (3, 4)
REFERENCE = build(SampleSpec(VOCAB), None)


def host_result(batch):
    return batch.step_result(0, batch.tensors)


class Rig:
    """A sampler over a poisoned token table, with an op that keeps what it was given."""

    def __init__(self, op=REFERENCE, max_logprobs=5, dtype=torch.int32):
        self.table = torch.full((ROWS, LENGTH), 2**31 - 1, dtype=dtype)
        self.modified = None
        self.op = op
        self.sampler = Sampler(VOCAB, self._keep, EOS, self.table, max_logprobs)

    def _keep(self, logits, *args):
        self.modified = logits.clone()
        return self.op(logits, *args)

    def add(self, row, tokens, num_prompt, params, seed=0, bad_words=()):
        self.table[row] = 2**31 - 1
        self.table[row, : len(tokens)] = torch.tensor(tokens, dtype=self.table.dtype)
        params = replace(params, bad_words_token_ids=bad_words)
        self.sampler.set_row(NewRow(row, [], num_prompt, 0, [], params, seed))
        return len(tokens)

    def __call__(self, logits, rows, num_tokens):
        return self.sampler(logits.clone(), np.array(rows), np.array(num_tokens))


def oracle_logits(logits, tokens, num_prompt, params, bad_words):
    """What the parameters make of one row's logits, in Python floats."""
    x = [float(v) for v in logits]
    output = tokens[num_prompt:]
    for t in set(tokens):
        r = params.repetition_penalty
        x[t] = x[t] / r if x[t] > 0 else x[t] * r
    for t in set(output):
        x[t] -= params.presence_penalty + params.frequency_penalty * output.count(t)
    for t, bias in params.logit_bias.items():
        x[t] += bias
    forbidden = set()
    if params.allowed_token_ids:
        forbidden |= set(range(VOCAB)) - set(params.allowed_token_ids)
    for *head, last in bad_words:
        if tokens[len(tokens) - len(head) :] == head:
            forbidden.add(last)
    if len(output) < params.min_tokens:
        forbidden |= {*EOS, *params.stop_token_ids}
    return [-math.inf if t in forbidden else v for t, v in enumerate(x)]


def random_params(rng):
    """A random mixture in which every feature is absent as often as not."""
    options = {
        "temperature": lambda: rng.choice([0.0, 0.5, 1.3]),
        "top_k": lambda: rng.choice([-1, 3, 100]),
        "top_p": lambda: 0.7,
        "min_p": lambda: 0.1,
        "repetition_penalty": lambda: rng.choice([0.7, 1.3]),
        "presence_penalty": lambda: rng.uniform(-2, 2),
        "frequency_penalty": lambda: rng.uniform(-2, 2),
        "logit_bias": lambda: {t: rng.uniform(-9, 9) for t in rng.sample(range(VOCAB), 4)},
        "allowed_token_ids": lambda: tuple(rng.sample(range(VOCAB), 20)),
        "min_tokens": lambda: 8,
        "stop_token_ids": lambda: tuple(rng.sample(range(VOCAB), 3)),
        "logprobs": lambda: rng.choice([0, 2, 5]),
    }
    chosen = {name: make() for name, make in options.items() if rng.random() < 0.5}
    if "logprobs" in chosen and rng.random() < 0.5:
        chosen["logprob_token_ids"] = rng.choices(range(VOCAB), k=rng.randrange(1, 4))
    return SamplingParams(max_tokens=100, **chosen)


def random_row(rng):
    tokens = [rng.randrange(6) for _ in range(rng.randrange(1, LENGTH))]
    num_prompt = rng.randrange(1, len(tokens) + 1)
    tail = [tokens[max(0, len(tokens) - k) :] for k in range(3)]
    # Some of these match where the row now ends; others only nearly.
    words = [(*tail[k], t) for k in range(3) for t in rng.sample(range(VOCAB), 2)]
    words += [(9, *tail[1], words[0][-1]), (*([1] * 41), 7)]
    return tokens, num_prompt, random_params(rng), words if rng.random() < 0.5 else []


@pytest.mark.parametrize("seed", range(12))
def test_mixed_batch_agrees_with_oracle(seed):
    rng, g = random.Random(seed), torch.Generator().manual_seed(seed)
    rig = Rig(dtype=torch.int32 if seed % 2 else torch.int64)
    state = {row: random_row(rng) for row in range(ROWS)}
    seeds = {row: rng.randrange(2**63) for row in state}
    for row, (tokens, num_prompt, params, words) in state.items():
        rig.add(row, tokens, num_prompt, params, seeds[row], words)
    for _ in range(3):
        rows = rng.sample(range(ROWS), rng.randrange(1, ROWS + 1))
        logits = torch.randn(len(rows), VOCAB, generator=g) * 4
        batch = rig(logits, rows, [len(state[row][0]) for row in rows])
        expected = torch.tensor(
            [oracle_logits(x, *state[row]) for x, row in zip(logits, rows, strict=True)],
            dtype=torch.float64,
        )
        torch.testing.assert_close(rig.modified.double(), expected, rtol=1e-5, atol=1e-4)
        for i, row in enumerate(rows):
            check_row(state[row], seeds[row], rig.modified[i : i + 1], batch.tokens[i].item())
        check_logprobs(batch, logits, {row: state[row][2] for row in rows})


def check_row(row, seed, modified, token):
    tokens, _, p, _ = row
    u = uniforms(np.array([seed], np.uint64), np.array([len(tokens)]))
    columns = (torch.tensor([x]) for x in (p.temperature, max(p.top_k, 0), p.top_p, p.min_p))
    t, k, top_p, min_p = columns
    assert token == REFERENCE(modified, t, k.int(), top_p, min_p, torch.from_numpy(u)).item()


def check_logprobs(batch, raw, params):
    result = batch.step_result(7, batch.tensors)
    assert result.step_id == 7 and result.rows == list(params)
    assert set(result.logprobs) == {r for r, p in params.items() if p.logprobs is not None}
    exact = raw.double().log_softmax(1)
    for i, row in enumerate(params):
        if row not in result.logprobs:
            continue
        [got], k = result.logprobs[row], params[row].logprobs
        order = exact[i].argsort(descending=True, stable=True)[:k].tolist()
        order += params[row].logprob_token_ids
        [chosen] = result.tokens[i]
        assert list(got.token_ids) == [chosen, *order]
        np.testing.assert_allclose(got.logprobs, exact[i][[chosen, *order]], rtol=1e-5, atol=1e-5)
        assert got.rank == 1 + (exact[i] > exact[i][chosen]).sum().item()


def test_plain_rows_reach_the_op_unchanged_and_plans_are_kept():
    rig = Rig()
    lengths = [rig.add(row, [1, 2], 2, SamplingParams(temperature=0.0)) for row in range(4)]
    logits = torch.randn(4, VOCAB)
    first = rig(logits, range(4), lengths)
    assert torch.equal(rig.modified, logits)
    assert first.plan.stages == [] and first.logprobs is None
    second = rig(logits, range(4), lengths)
    assert second.plan is first.plan
    rig.add(2, [1, 2], 2, SamplingParams(temperature=0.0, logit_bias={7: 100.0}))
    assert rig(logits, range(4), lengths).tokens[2] == 7
    fewer = rig(logits[:2], range(2), lengths[:2])
    assert fewer.tokens.tolist() == first.tokens[:2].tolist()


def test_model_dtype_logits_are_sampled_in_float32():
    rig = Rig()
    n = rig.add(0, [1], 1, SamplingParams(temperature=0.0, logprobs=1))
    logits = torch.randn(1, VOCAB).bfloat16()
    batch = rig(logits, [0], [n])
    assert rig.modified.dtype == torch.float32
    assert batch.tokens.item() == logits[0].float().argmax().item()


def test_failed_rows_are_named_and_others_go_on():
    rig = Rig()
    params = SamplingParams(logprobs=1, temperature=1.0)
    n = [rig.add(row, [1], 1, params) for row in range(3)]
    n.append(rig.add(3, [1], 1, SamplingParams(allowed_token_ids=(3,), min_tokens=1)))
    logits = torch.randn(4, VOCAB)
    alone = rig(logits[2:3], [2], n[2:3]).tokens.item()
    logits[0, 9], logits[1] = math.nan, math.inf
    result = host_result(rig(logits, range(4), n))
    assert result.rows == [2] and result.tokens == [[alone]]
    assert set(result.failed) == {0, 1, 3} and "NaN" in result.failed[0]
    assert set(result.logprobs) == {2}


def generate(rig, row, params, seed, steps, companions=0):
    """Sample a sequence from position-dependent logits, with changing company."""
    tokens = [5, 6]
    for step in range(steps):
        others = [r for r in range(companions) if r != row][: 1 + step % max(companions, 1)]
        batch_rows = [*others, row] if companions else [row]
        random.Random(step).shuffle(batch_rows)
        logits = {
            r: torch.randn(VOCAB, generator=torch.Generator().manual_seed(step * 100 + (r == row)))
            for r in batch_rows
        }
        for r in others if companions else []:
            rig.add(r, [1, 2, 3], 2, SamplingParams(temperature=0.9, presence_penalty=1.0), step)
        n = rig.add(row, tokens, 2, params, seed)  # as after a preemption
        lengths = [n if r == row else 3 for r in batch_rows]
        result = rig(torch.stack([logits[r] for r in batch_rows]), batch_rows, lengths)
        tokens.append(result.tokens[batch_rows.index(row)].item())
    return tokens


def test_tokens_of_a_seed_do_not_depend_on_row_company_or_preemption():
    params = SamplingParams(
        temperature=1.5, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.3, min_tokens=3
    )
    alone = generate(Rig(), 0, params, 1234, 25)
    assert generate(Rig(), 8, params, 1234, 25, companions=7) == alone
    assert generate(Rig(), 3, params, 1234, 25, companions=12) == alone
    assert generate(Rig(), 0, params, 1235, 25) != alone


def test_seeded_positions_draw_from_the_distribution():
    rig = Rig()
    # Of other logits, one that is hardly ever expected but comes twice could spoil the sum.
    logits = torch.linspace(-2.0, 2.0, VOCAB)[None].roll(17, 1)
    counts = torch.zeros(VOCAB, dtype=torch.float64)
    n = 400
    for seed in range(n):
        for row in range(ROWS):
            rig.add(row, [1], 1, SamplingParams(temperature=1.0), seed * ROWS + row)
        tokens = rig(logits.expand(ROWS, -1), range(ROWS), [1] * ROWS).tokens
        counts += tokens.bincount(minlength=VOCAB)
    expected = logits[0].softmax(0).double() * n * ROWS
    assert ((counts - expected) ** 2 / expected).sum() < 130  # 49 degrees, p below 1e-8


def test_logprobs_are_capped_and_ids_beyond_the_vocabulary_ignored():
    rig = Rig(max_logprobs=2)
    far = 10**9
    params = SamplingParams(
        temperature=0.0,
        logprobs=40,
        logit_bias={far: 1.0, 1: 50.0},
        allowed_token_ids=(1, far),
        stop_token_ids=(far, 2),
        min_tokens=1,
    )
    n = rig.add(0, [1], 1, params, bad_words=[(far, 1), (1, far)])
    result = host_result(rig(torch.randn(1, VOCAB), [0], [n]))
    assert result.tokens == [[1]] and len(result.logprobs[0][0].token_ids) == 3
