"""Log probabilities of prompts and of chosen tokens against float64."""

import torch

from hotshoe.sampling import compute_logprobs
from hotshoe.types import TokenLogprobs


def prompt_logprobs(logits: torch.Tensor, targets: torch.Tensor, k: int) -> list[TokenLogprobs]:
    return compute_logprobs(logits, targets.long(), k).to_host([k] * len(targets))


def test_prompt_logprobs_agree_with_float64():
    logits = torch.randperm(9 * 30).view(9, 30) / 10  # no two alike, so that their order is one
    targets = torch.randint(30, (9,), dtype=torch.int32)
    exact = logits.double().log_softmax(1)
    for k in (0, 1, 7):
        got = prompt_logprobs(logits, targets, k)
        assert len(got) == 9
        for i, x in enumerate(got):
            ids = [targets[i].item(), *exact[i].argsort(descending=True)[:k].tolist()]
            assert list(x.token_ids) == ids
            torch.testing.assert_close(
                torch.tensor(x.logprobs, dtype=torch.float64), exact[i][ids], rtol=1e-5, atol=1e-5
            )
            assert x.rank == 1 + (exact[i] > exact[i][ids[0]]).sum().item()


def test_more_logprobs_than_tokens_and_bfloat16():
    logits = torch.randn(2, 4).bfloat16()
    got = prompt_logprobs(logits, torch.tensor([1, 2]), 9)
    assert [len(x.token_ids) for x in got] == [5, 5]
    probabilities = torch.tensor([x.logprobs[1:] for x in got]).exp().sum(1)
    torch.testing.assert_close(probabilities, torch.ones(2))


def test_rank_counts_strictly_likelier_tokens():
    tensors = compute_logprobs(
        torch.tensor([[1.0, 2.0, 2.0, 0.0]]).repeat(3, 1), torch.tensor([0, 2, -1]), 0
    )
    assert tensors.ranks.tolist() == [3, 1, 3]
