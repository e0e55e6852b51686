"""Which requests get trees, and the chain that others get."""

import logging

import pytest

from hotshoe import GrammarSpec, SamplingParams
from hotshoe.scheduler import Request
from hotshoe.speculation.proposer import Wanted
from hotshoe.speculation.trees import TreeHeads
from hotshoe.types.trees import parse_tree

TREE = parse_tree("[(0,), (1,), (0, 0), (1, 0)]")
MADE = [10, 11, 12, 13]


def proposed(heads: TreeHeads, params: SamplingParams, limit: int) -> tuple[Request, list[int]]:
    request = Request("r", [1, 2], params)
    heads.add(request)
    [drafts] = heads.propose([Wanted(request, limit, MADE)])
    return request, drafts


def test_a_request_gets_the_tree_or_as_much_as_there_is_room_for() -> None:
    request, drafts = proposed(TreeHeads(TREE), SamplingParams(temperature=0.5, min_tokens=3), 4)
    assert (request.parents, drafts) == (TREE.parents, MADE)
    assert proposed(TreeHeads(TREE), SamplingParams(), 3)[1] == MADE[:3]


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (SamplingParams(frequency_penalty=0.5), "penalties"),
        (SamplingParams(presence_penalty=-0.5), "penalties"),
        (SamplingParams(repetition_penalty=0.9), "penalties"),
        (SamplingParams(grammar=GrammarSpec.regex("a")), "a grammar"),
        (SamplingParams(bad_words_token_ids=((1, 2),)), "bad words"),
        (SamplingParams(extra_args={"x": 1}), "arguments of logits processors"),
        (SamplingParams(logprobs=0), "log probabilities"),
    ],
)
def test_who_looks_at_tokens_before_gets_a_chain(
    params: SamplingParams, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    heads = TreeHeads(TREE)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            request, drafts = proposed(heads, params, 4)
            assert (request.parents, drafts) == ((), MADE[:2])
    assert [record.getMessage() for record in caplog.records] == [
        f"drafts are chains, not trees, for requests with {reason}"
    ]


def test_all_requests_get_chains_where_something_holds_for_all() -> None:
    request, drafts = proposed(TreeHeads(TREE, "logits processors"), SamplingParams(), 1)
    assert (request.parents, drafts) == ((), MADE[:1])
