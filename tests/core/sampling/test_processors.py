"""Logits processors: which rows they see and change, and what becomes of one that fails."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hotshoe.runner.running import RunningStep
from hotshoe.sampling import Sampler
from hotshoe.sampling.processors import Change, Known, LoadedProcessor
from hotshoe.slots.reference.sampling import build
from hotshoe.slots.specs import SampleSpec
from hotshoe.types import Argument, NewRow, SamplingParams

VOCAB, ROWS, LENGTH = 40, 6, 12
POISON = 2**31 - 1


class Push:
    """Adds to the logit of the token that follows the last one; keeps what it saw."""

    arguments: Mapping[str, Argument] = {
        "push": Argument("number", 1.0),
        "step": Argument("integer", 1),
    }

    def __init__(self) -> None:
        self.plans: list[Sequence[Mapping[str, Any]]] = []
        self.seen: list[Known] = []

    def plan(self, requests: Sequence[Mapping[str, Any]]) -> Change | None:
        self.plans.append(requests)
        push = torch.tensor([r["push"] for r in requests])[:, None]
        step = torch.tensor([r["step"] for r in requests])[:, None]

        def change(logits: Tensor, known: Known) -> None:
            self.seen.append(known)
            logits.scatter_add_(1, (known.last(1) + step) % VOCAB, push)

        return change


class Broken(Push):
    """Fails where it is told to."""

    arguments: Mapping[str, Argument] = {"broken": Argument("string")}

    def plan(self, requests: Sequence[Mapping[str, Any]]) -> Change | None:
        kinds = {r["broken"] for r in requests}
        if "plan" in kinds:
            raise SystemExit("no plan")
        return {"change": self._fail, "answer": self._answer, "nothing": None}[kinds.pop()]

    def _fail(self, logits: Tensor, known: Known) -> None:
        logits += 1
        raise ValueError("no change")

    def _answer(self, logits: Tensor, known: Known) -> Tensor:
        return logits + 1


class Rig:
    """A sampler with processors, greedy, over a poisoned token table."""

    def __init__(self, *processors: Any) -> None:
        self.table = torch.full((ROWS, LENGTH), POISON, dtype=torch.int32)
        loaded = [
            LoadedProcessor(f"logits processor {type(p).__name__} (pack)", p).plan
            for p in processors
        ]
        op = build(SampleSpec(VOCAB), None)
        self.sampler = Sampler(VOCAB, op, (), self.table, 5, loaded)

    def add(self, row: int, tokens: Sequence[int], num_prompt: int = 1, **options: Any) -> None:
        self.table[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        params = SamplingParams(temperature=0.0, **options)
        self.sampler.set_row(NewRow(row, [], num_prompt, 0, [], params, 0))

    def __call__(self, logits: Tensor, rows: Sequence[int], lengths: Sequence[int]) -> Any:
        return self.sampler(logits.clone(), np.array(rows), np.array(lengths))


def test_rows_that_ask_are_changed_and_no_others() -> None:
    push = Push()
    rig = Rig(push)
    rig.add(0, [3, 5])
    rig.add(2, [3, 7], extra_args={"push": 100.0})
    rig.add(4, [3, 9, 11], num_prompt=2, extra_args={"push": 100.0, "step": 2, "other": 1})
    logits = torch.randn(3, VOCAB)
    batch = rig(logits, [4, 0, 2], [3, 2, 2])
    assert batch.tokens.tolist() == [13, int(logits[1].argmax()), 8]
    assert push.plans == [[{"push": 100.0, "step": 2}, {"push": 100.0, "step": 1}]]
    [known] = push.seen
    assert known.rows.tolist() == [4, 2]
    assert (known.lengths.tolist(), known.prompt_lengths.tolist()) == ([3, 2], [2, 1])
    assert known.last(3).tolist() == [[3, 9, 11], [-1, 3, 7]]
    rig.table[2, 2] = 20
    assert rig(logits, [4, 0, 2], [3, 2, 3]).tokens[2] == 21
    assert len(push.plans) == 1  # as the batch stays the same


def test_every_position_of_drafts_is_changed_by_the_tokens_before_it() -> None:
    rig = Rig(Push())
    rig.add(1, [3, 5, 30, 31], extra_args={"push": 100.0})
    tokens = rig(torch.randn(3, VOCAB), [1, 1, 1], [2, 3, 4]).tokens
    assert tokens.tolist() == [6, 31, 32]


def test_values_change_before_tokens_are_forbidden_and_log_probabilities_are_the_models() -> None:
    rig = Rig(Push())
    rig.add(0, [3, 5], extra_args={"push": 100.0}, allowed_token_ids=(1, 2), logprobs=0)
    logits = torch.randn(1, VOCAB)
    batch = rig(logits, [0], [2])
    assert batch.tokens.tolist() == [1 + int(logits[0, 2] > logits[0, 1])]
    expected = logits.log_softmax(1)[0, batch.tokens[0]]
    assert batch.logprobs.logprobs[0, 0] == pytest.approx(float(expected), abs=1e-5)


def test_a_processor_for_all_gets_its_defaults() -> None:
    push = Push()
    push.for_all = True
    rig = Rig(push)
    rig.add(0, [3, 5])
    rig.add(1, [3, 6], extra_args={"step": 4})
    rig(torch.randn(2, VOCAB), [0, 1], [2, 2])
    assert push.plans == [[{"push": 1.0, "step": 1}, {"push": 1.0, "step": 4}]]


def test_without_arguments_nothing_is_planned() -> None:
    push = Push()
    rig = Rig(push)
    rig.add(0, [3, 5])
    rig(torch.randn(1, VOCAB), [0], [2])
    assert not push.plans


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("plan", "SystemExit: no plan"),
        ("change", "ValueError: no change"),
        ("answer", "TypeError: it returned Tensor; change logits in place"),
    ],
)
def test_one_that_fails_is_blamed_and_fails_its_own_rows(kind: str, why: str) -> None:
    rig = Rig(Broken(), Push())
    rig.add(0, [3, 5], extra_args={"broken": kind})
    rig.add(1, [3, 5], extra_args={"push": 100.0})
    for rows in ([0, 1], [0]):  # beside others, and alone
        batch = rig(torch.randn(len(rows), VOCAB), rows, [2] * len(rows))
        result = RunningStep(7, batch, [], lambda b=batch: b.tensors).result()
        assert result.failed == {0: f"logits processor Broken (pack) failed: {why}"}
        assert (result.rows, result.tokens) == (rows[1:], [[6]] * (len(rows) - 1))


def test_one_that_wants_nothing_changes_nothing() -> None:
    rig = Rig(Broken())
    rig.add(0, [3, 5], extra_args={"broken": "nothing"})
    logits = torch.randn(1, VOCAB)
    assert rig(logits, [0], [2]).tokens.tolist() == [int(logits.argmax())]


def test_what_is_forbidden_everywhere_is_not_blamed_on_a_processor() -> None:
    rig = Rig(SimpleNamespace(arguments=Push.arguments, plan=lambda r: _forbid))
    rig.add(0, [3, 5], extra_args={"push": 1.0})
    batch = rig(torch.randn(1, VOCAB), [0], [2])
    assert "no token can be sampled" in batch.step_result(0, batch.tensors).failed[0]


def _forbid(logits: Tensor, known: Known) -> None:
    logits.fill_(float("-inf"))
