"""What a configuration means for models with states."""

import pytest

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError
from hotshoe.runner.states import check_states, state_options
from hotshoe.types.cache import CacheSpec

DRAFTS = {"method": "ngram", "num_speculative_tokens": 2}
STATE, FULL = CacheSpec("state", 4, ()), CacheSpec("full", 4, ())


def test_types_are_those_of_the_model_and_of_exact_sums_unless_said():
    options = {"checkpoints": "none", "conv_state_dtype": None, "state_dtype": "float32"}
    assert state_options(EngineConfig()) == options
    config = EngineConfig(
        state_cache_mode="all", conv_state_dtype="float32", state_dtype="bfloat16"
    )
    options = {"checkpoints": "all", "conv_state_dtype": "float32", "state_dtype": "bfloat16"}
    assert state_options(config) == options


def test_drafts_are_refused_where_there_are_states():
    config = EngineConfig(speculative_config=DRAFTS)
    with pytest.raises(ConfigError, match=r"speculative_config.*state of each sequence.*leave"):
        check_states(config, [FULL, STATE])
    check_states(config, [FULL])
    check_states(EngineConfig(), [FULL, STATE])
