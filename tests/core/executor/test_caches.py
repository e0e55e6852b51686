"""Caches that no group can be made for are named, with the remedy."""

import pytest

from hotshoe.errors import ConfigError
from hotshoe.executor.caches import check_caches
from hotshoe.types.cache import CacheSpec


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (CacheSpec("cross", 16, ()), r"layers\[1\].*kind cross.*\(served: full, .*use a model"),
        (CacheSpec("full", 32, ()), r"block_size 16 does not fit layers\[1\].*--block-size 32$"),
        (
            CacheSpec("full", 16, (), tokens_per_entry=6),
            r"one entry for 6 tokens.*--block-size 18$",
        ),
    ],
)
def test_caches_that_no_group_can_be_made_for(spec, words):
    check_caches([CacheSpec("full", 16, ()), CacheSpec("full", 16, (), tokens_per_entry=8)], 16)
    with pytest.raises(ConfigError, match=words):
        check_caches([CacheSpec("full", 16, ()), spec], 16)
