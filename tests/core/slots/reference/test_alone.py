"""References for `--batch-invariant`: right as ever, and no row knows of its neighbors."""

from collections import Counter

import pytest
import torch

from hotshoe.lazy import resolve_lazy
from hotshoe.slots import (
    REFERENCE,
    SLOTS,
    AdaptableMoeOp,
    AttentionMetadata,
    Candidate,
    LinearSpec,
    MoeSpec,
    NormSpec,
    RouterSpec,
    Selector,
    accept,
)
from hotshoe.slots.reference.alone import Alone, one_by_one
from hotshoe_conformance.cases import SUITES
from hotshoe_conformance.cases.base import HOST, cases
from hotshoe_conformance.judge import judge

ALONE = sorted(name for name, slot in SLOTS.items() if slot.alone and name != "graph")


@pytest.mark.parametrize("slot", [name for name in ALONE if name != "transfer"])
def test_the_claim_of_batch_invariance_holds(slot: str) -> None:
    """The kit judges the wrapped reference as it would any candidate that claims so."""

    def build(spec, facts):
        return resolve_lazy(SLOTS[slot].alone)(resolve_lazy(SLOTS[slot].reference)(spec, facts))

    candidate = Candidate(slot, "alone", SLOTS[slot].reference_supports, build, True)
    suite, count = SUITES[slot], 0
    for case in cases(suite, (), 3, range(0, len(suite.grid(())) + 6, 3)):
        if case.setup.bytes or count == 12:
            continue
        problem = case.problem(suite)
        outcome = judge(candidate, case.setup.spec, HOST, lambda p=problem: p, problem.expected)
        assert not outcome.defect, case
        count += not outcome.refused
    assert count


def test_only_then_is_a_reference_wrapped() -> None:
    spec = NormSpec(8, 1e-6, "float32")
    plain = Selector(SLOTS, (), HOST).choose("rms_norm", spec)
    alone = Selector(SLOTS, (), HOST, batch_invariant=True).choose("rms_norm", spec)
    assert isinstance(alone, Alone)
    assert not isinstance(plain, Alone)
    x, weight = torch.randn(5, 8), torch.randn(8)
    assert torch.allclose(alone(x, weight), plain(x, weight))
    other = Candidate("rms_norm", "quick", lambda s, f: accept(9), lambda s, f: plain)
    chosen = Selector(SLOTS, [other], HOST, batch_invariant=True).decide("rms_norm", spec)
    assert (chosen.chosen, chosen.native) == (REFERENCE, False)


def test_adapters_of_experts_see_each_token_alone() -> None:
    sides = LinearSpec(8, 12, "float32"), LinearSpec(6, 8, "float32")
    spec = MoeSpec(*sides, 3, 2, "silu", RouterSpec())
    op = Selector(SLOTS, (), HOST, batch_invariant=True).choose("moe", spec)
    assert isinstance(op, AdaptableMoeOp) and hasattr(type(op), "adapted")
    for expert in range(3):
        op.load_gate_up(expert, {"weight": [torch.randn(12, 8)]})
        op.load_down(expert, {"weight": [torch.randn(8, 6)]})
    x, logits, seen = torch.randn(5, 8), torch.randn(5, 3), list[tuple[str, int]]()

    def between(name, y, x, tokens, experts) -> None:
        seen.extend((name, token) for token in tokens.tolist())
        y += tokens[:, None]

    whole = op.adapted(x, logits, None, None, between)
    assert Counter(seen) == {(name, i): 2 for name in ("gate_up", "down") for i in range(5)}
    alone = op.adapted(x[3:4], logits[3:4], None, None, lambda *g: between(*g[:3], g[3] + 3, g[4]))
    assert torch.equal(whole[3:4], alone)


def test_each_query_is_a_request_that_ends_with_it() -> None:
    step = AttentionMetadata(
        num_reqs=2,
        query_start_loc=torch.tensor([0, 3, 4], dtype=torch.int32),
        seq_lens=torch.tensor([5, 9], dtype=torch.int32),
        block_table=torch.tensor([[1, 2], [3, 4]], dtype=torch.int32),
        slot_mapping=torch.arange(4),
        max_query_len=3,
        max_seq_len=9,
    )
    found = one_by_one(step)
    assert found.num_reqs == 4
    assert found.query_start_loc.tolist() == [0, 1, 2, 3, 4]
    assert found.seq_lens.tolist() == [3, 4, 5, 9]
    assert found.block_table.tolist() == [[1, 2], [1, 2], [1, 2], [3, 4]]
    assert found.max_query_len == 1
