"""The shortlist of a row: what it holds, in which order, and when it is refused."""

import pytest
import torch
import triton
import triton.language as tl

from hotshoe.platform import DeviceFacts
from hotshoe_triton.kernels.shortlist import from_shortlist, gather

SIZE, GROUP, GROUPS, BLOCK_G = 60, 4, 16, 16


@triton.jit(do_not_specialize=["wanted"])
def list_of(
    count_ptr, row_ptr, tops_ptr, scratch_ptr, wanted, SIZE: tl.constexpr, GROUP: tl.constexpr,
    GROUPS: tl.constexpr, BLOCK_G: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """Write the shortlist and its length."""
    values_ptr = scratch_ptr + BLOCK_G
    count = gather(
        row_ptr, tops_ptr, scratch_ptr, values_ptr, wanted, SIZE, GROUP, GROUPS, BLOCK_G, ROOM
    )
    tl.store(count_ptr, count)


@triton.jit(do_not_specialize=["top_k"])
def token_of(
    token_ptr, row_ptr, tops_ptr, scratch_ptr, filters_ptr, top_k, SIZE: tl.constexpr,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, BLOCK_G: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """Write the token; filters are whole, largest, top_p, min_p and uniform; weights are 2 ** x."""
    whole, largest = tl.load(filters_ptr), tl.load(filters_ptr + 1).to(tl.float32)
    top_p, least = tl.load(filters_ptr + 2), tl.load(filters_ptr + 3).to(tl.float32)
    token = from_shortlist(
        row_ptr, tops_ptr, scratch_ptr, whole, largest, 1.0, top_k, top_p, least,
        tl.load(filters_ptr + 4), SIZE, GROUP, GROUPS, BLOCK_G, ROOM,
    )  # fmt: skip
    tl.store(token_ptr, token)


def row(rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and the largest of each group; the last group has none."""
    x = torch.randn(SIZE, generator=rng, device=rng.device)
    padded = torch.full((GROUPS * GROUP,), float("-inf"), device=rng.device)
    padded[:SIZE] = x
    return x, padded.view(GROUPS, GROUP).amax(1)


@pytest.mark.parametrize("wanted", [1, 3, 15])
def test_it_holds_all_that_reach_the_bound_in_order(
    facts: DeviceFacts, wanted: int, rng: torch.Generator
) -> None:
    x, tops = row(rng)
    scratch = torch.full((BLOCK_G + 2 * 64,), -9, dtype=torch.int32, device=facts.device)
    count = torch.zeros(1, dtype=torch.int32, device=facts.device)
    list_of[(1,)](
        count, x, tops, scratch, wanted, SIZE=SIZE, GROUP=GROUP, GROUPS=GROUPS, BLOCK_G=BLOCK_G,
        ROOM=64,
    )  # fmt: skip
    bound = tops.sort(descending=True).values[wanted - 1]
    expected = (x >= bound).nonzero()[:, 0]
    assert count.item() == len(expected) >= wanted
    values, indices = scratch[BLOCK_G:].view(2, 64)[:, : len(expected)]
    assert indices.tolist() == expected.tolist()
    assert torch.equal(values.contiguous().view(torch.float32), x[expected])
    assert (scratch[BLOCK_G:].view(2, 64)[:, len(expected) :] == -9).all()


def token(
    x: torch.Tensor, tops: torch.Tensor, top_k: int, top_p: float, room: int, whole: float
) -> int:
    scratch = torch.zeros(BLOCK_G + 2 * room, dtype=torch.int32, device=x.device)
    out = torch.full((1,), -5, dtype=torch.int32, device=x.device)
    filters = torch.tensor([whole, x.max().item(), top_p, 0.0, 0.5], dtype=torch.float64)
    token_of[(1,)](
        out, x, tops, scratch, filters.to(x.device), top_k, SIZE=SIZE, GROUP=GROUP, GROUPS=GROUPS,
        BLOCK_G=BLOCK_G, ROOM=room,
    )  # fmt: skip
    return int(out)


def test_too_long_a_list_is_refused(facts: DeviceFacts, rng: torch.Generator) -> None:
    x, tops = row(rng)
    whole = torch.exp2(x - x.max()).sum().item()
    assert token(x, tops, 8, 1.0, 64, whole) >= 0
    assert token(x, tops, 8, 1.0, 4, whole) == -1


def test_too_light_a_list_is_refused(facts: DeviceFacts, rng: torch.Generator) -> None:
    x, tops = row(rng)
    whole = torch.exp2(x - x.max()).sum().item()
    assert token(x, tops, 0, 0.9, 64, whole) >= 0
    assert token(x, tops, 0, 0.9, 64, whole * 2) == -1
    assert token(x, tops, 300, 0.9, 64, whole) >= 0, "as many as there are is no filter"


def test_top_k_needs_no_weight_of_the_rest(facts: DeviceFacts, rng: torch.Generator) -> None:
    x, tops = row(rng)
    best = x.argmax().item()
    assert token(x, tops, 1, 1.0, 64, 1e9) == best
    assert token(x, tops, 5, 1e-6, 64, 1e9) == best
