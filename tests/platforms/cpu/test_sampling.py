"""The sampling adapter against core's reference, token by token."""

import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import SampleSpec
from hotshoe.slots.reference.sampling import build
from hotshoe_cpu import sampling


def test_tokens_match_the_reference(facts: DeviceFacts, rng: torch.Generator) -> None:
    n, vocab = 400, 300
    spec = SampleSpec(vocab)
    assert sampling.supports(spec, facts).accepted

    def some(values: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        chosen = torch.tensor(values)[torch.randint(0, len(values), (n,), generator=rng)]
        return chosen.to(dtype)

    arguments = (
        some([0.0, 0.5, 1.0]),
        some([0, 1, 30], torch.int32),
        some([0.5, 0.9, 1.0]),
        some([0.0, 0.1]),
        torch.rand(n, generator=rng, dtype=torch.float64),
    )
    logits = torch.randn(n, vocab + 4, generator=rng)[:, :vocab] * 3
    logits[3] = torch.nan
    logits[4] = -torch.inf
    before = logits.clone()
    actual = sampling.Sample(spec, facts)(logits, *arguments)
    expected = build(spec, facts)(logits, *arguments)
    assert torch.equal(logits, before) or bool(logits[3].isnan().all())
    assert actual[3:5].tolist() == [-1, -1]
    # The sums differ in rounding, so a draw near an edge may fall on the neighbor.
    assert (actual != expected).sum() <= 2
