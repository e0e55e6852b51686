"""Which drafts are accepted, and that what comes out has the model's own distribution."""

import numpy as np
import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.sampling import Sampler
from hotshoe.sampling.verify import branching, verify
from hotshoe.slots import SampleSpec
from hotshoe.slots.reference.sampling import build
from hotshoe.types import NewRow, SamplingParams, StepPlan

FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)


@pytest.mark.parametrize(
    ("sampled", "drafts", "tokens"),
    [
        ([5], [], [5]),
        ([5, 6, 7], [5, 6], [5, 6, 7]),
        ([5, 6, 7], [5, 9], [5, 6]),
        ([5, 6, 7], [9, 6], [5]),
        ([5, -1, 7], [9, 8], [5]),
        ([-1, 6, 7], [5, 6], [-1]),
        ([5, -1, 7], [5, 6], [5]),
        ([5, 6, -1], [5, 6], [5, 6]),
    ],
)
def test_drafts_are_accepted_while_they_equal_what_was_sampled(
    sampled: list[int], drafts: list[int], tokens: list[int]
) -> None:
    rows = [4, *[2] * len(sampled), 3]
    found = verify(rows, [1, *sampled, 0], {2: drafts} if drafts else {})
    assert found == ([4, 2, 3], [[1], tokens, [0]])


@pytest.mark.parametrize(
    ("sampled", "tokens"),
    [
        ([9, 0, 0, 0, 0], [9]),
        ([5, 6, 1, 0, 0], [5, 6, 1]),
        ([5, 7, 1, 0, 0], [5, 7]),
        ([6, 0, 0, 5, 2], [6, 5, 2]),
        ([6, 0, 0, -1, 2], [6]),
        ([6, 0, 0, 5, -1], [6, 5]),
        ([-1, 6, 1, 5, 2], [-1]),
    ],
)
def test_the_path_through_a_tree_goes_on_at_what_was_sampled(
    sampled: list[int], tokens: list[int]
) -> None:
    plan = StepPlan(0, draft_rows=[2, 3], drafts=[[5, 6, 6, 5], [8]], parents={2: [-1, 0, -1, 2]})
    found = verify([4, *[2] * 5, 3, 3], [1, *sampled, 8, 0], branching(plan))
    assert found == ([4, 2, 3], [[1], tokens, [8, 0]])


#: With 5 degrees of freedom, 99.9 % of samples from the right distribution stay below.
CHI_SQUARE = 20.515
TABLE = torch.tensor(
    [
        [0.1, 1.0, 0.3, -0.5, 0.0, 0.7],
        [1.0, 0.2, 0.1, 0.0, 0.9, -1.0],
        [0.0, 0.0, 1.5, 0.3, 0.2, 0.1],
        [0.4, -0.4, 0.8, 0.0, 0.1, 1.1],
        [0.2, 0.9, 0.0, 0.6, -0.2, 0.3],
        [0.7, 0.1, 0.2, 0.3, 1.2, 0.0],
    ]
)


@pytest.mark.parametrize("drafts", [[1, 4], [3, 0], [5, 5]])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.6, top_k=4),
        SamplingParams(temperature=1.3, frequency_penalty=0.7, logit_bias={2: 0.8}),
    ],
)
def test_tokens_with_drafts_have_the_distribution_of_those_without(
    params: SamplingParams, drafts: list[int]
) -> None:
    """The next two tokens of a model that reads the last one, by the counts of many seeds."""
    number, vocab = 20_000, 6
    table = torch.zeros((number, 8), dtype=torch.int32)
    table[:, :1], table[:, 1:3] = 2, torch.tensor(drafts)
    sampler = Sampler(vocab, build(SampleSpec(vocab), FACTS), (), table)
    for row in range(number):
        sampler.set_row(NewRow(row, [2], 1, 0, [0], params, seed=7919 * row + 1))
    positions = np.tile([1, 2, 3], number)
    logits = TABLE[torch.tensor([2, *drafts])].repeat(number, 1)
    batch = sampler(logits, np.repeat(np.arange(number), 3), positions)
    result = batch.step_result(0, batch.tensors, dict.fromkeys(range(number), drafts))
    first = np.bincount([tokens[0] for tokens in result.tokens], minlength=vocab)
    expected = exact(params, [2], number)
    kept = expected > 0
    assert not first[~kept].any()
    assert (((first - expected)[kept] ** 2) / expected[kept]).sum() < CHI_SQUARE
    # Where the first draft was accepted, the second token has the distribution behind it.
    second = np.bincount([t[1] for t in result.tokens if len(t) > 1], minlength=vocab)
    assert first[drafts[0]] == second.sum()
    if second.sum():
        expected = exact(params, [2, drafts[0]], int(second.sum()))
        kept = expected > 0
        assert not second[~kept].any()
        assert (((second - expected)[kept] ** 2) / expected[kept]).sum() < CHI_SQUARE


def test_tokens_through_trees_have_the_distribution_of_those_without() -> None:
    """Two choices at each of two places, whose samples share a random number."""
    params, number, vocab = SamplingParams(temperature=1.0), 20_000, 6
    drafts, parents = [1, 4, 3, 2, 4], [-1, 0, -1, 2, 2]
    sampler = Sampler(vocab, build(SampleSpec(vocab), FACTS), (), torch.zeros((number, 8)).int())
    for row in range(number):
        sampler.set_row(NewRow(row, [2], 1, 0, [0], params, seed=7919 * row + 1))
    positions = np.tile([1, 2, 3, 2, 3, 3], number)
    logits = TABLE[torch.tensor([2, *drafts])].repeat(number, 1)
    batch = sampler(logits, np.repeat(np.arange(number), 6), positions)
    rows = list(range(number))
    trees = branching(
        StepPlan(0, draft_rows=rows, drafts=[drafts] * number, parents=dict.fromkeys(rows, parents))
    )
    tokens = batch.step_result(0, batch.tensors, trees).tokens
    followed = {(): [], (1,): [], (3,): [], (1, 4): [], (3, 2): [], (3, 4): []}
    for own in tokens:
        for place, token in enumerate(own):
            followed[tuple(own[:place])].append(token)
    for before, behind in followed.items():
        expected = exact(params, [2, *before], len(behind))
        assert len(behind) > 200
        found = np.bincount(behind, minlength=vocab)
        assert ((found - expected) ** 2 / expected).sum() < CHI_SQUARE


def exact(params: SamplingParams, tokens: list[int], number: int) -> np.ndarray:
    """How often each token is expected after these, of which the first is the prompt."""
    logits = TABLE[tokens[-1]].double().numpy().copy()
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    for token in tokens[1:]:
        logits[token] -= params.frequency_penalty
    weights = np.exp(logits / params.temperature)
    if params.top_k > 0:
        weights[np.argsort(weights)[: -params.top_k]] = 0
    return number * weights / weights.sum()
