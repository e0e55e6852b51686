"""Look-ups of several sequences at once: the drafts of the host's, one by one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.errors import ConfigError
from hotshoe.speculation import DeviceProposer
from hotshoe_speculation.ngram import NgramFollower
from hotshoe_speculation.ngram_device import DeviceNgramProposer


@given(
    texts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=40), min_size=1, max_size=4),
    lengths=st.tuples(st.integers(1, 4), st.integers(0, 3)),
    limit=st.integers(1, 6),
    behind=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_drafts_are_those_of_the_host(
    texts: list[list[int]], lengths: tuple[int, int], limit: int, behind: int, seed: int
) -> None:
    """Whatever stands behind the known tokens, such as refused drafts."""
    shortest, longest = lengths[0], sum(lengths)
    options = {"prompt_lookup_min": shortest, "prompt_lookup_max": longest}
    shape = (len(texts), max(map(len, texts)) + behind)
    drawn = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 4, shape, generator=drawn, dtype=torch.int32)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    proposer = DeviceNgramProposer(options)
    found = proposer.search(tokens, torch.tensor([len(text) for text in texts]), limit)
    assert (found.dtype, found.shape) == (torch.int32, (len(texts), limit))
    for text, drafts in zip(texts, found.tolist(), strict=True):
        expected = NgramFollower(shortest, longest).propose(text, limit)
        assert drafts == (expected or [-1] * limit)


def test_it_is_a_proposer_on_the_device() -> None:
    assert isinstance(DeviceNgramProposer({}), DeviceProposer)


def test_options_are_those_of_the_host() -> None:
    with pytest.raises(ConfigError, match="ngram_device has no option 'prompt_lookup_mx'"):
        DeviceNgramProposer({"prompt_lookup_mx": 4})
    with pytest.raises(ConfigError, match=r"prompt_lookup_min \(5\) exceeds"):
        DeviceNgramProposer({"prompt_lookup_min": 5})
