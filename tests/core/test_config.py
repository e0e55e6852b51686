"""The configuration: validated when built, frozen, changed only by copies."""

import math
from dataclasses import FrozenInstanceError, asdict, fields, replace

import pytest

from hotshoe.config import EngineConfig, ResolvedConfig
from hotshoe.errors import ConfigError
from hotshoe.platform import Change


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be between 1 and 65536, not 0"),
        ({"max_num_seqs": 65537}, "max_num_seqs must be between"),
        ({"max_num_seqs": 1.5}, "max_num_seqs must be int, not 1.5"),
        ({"max_num_seqs": True}, "max_num_seqs must be int, not True"),
        ({"max_num_seqs": None}, "max_num_seqs must be int, not None"),
        ({"max_model_len": "8"}, "max_model_len must be int or null, not '8'"),
        ({"kv_cache_memory_bytes": -1}, "kv_cache_memory_bytes must be at least 0, not -1"),
        ({"dtype": "float7"}, "dtype must be one of auto, float32, bfloat16, float16"),
        ({"scheduling_policy": "random"}, "must be one of auto, fair, fcfs, priority"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching must be bool, not 1"),
        ({"seed": -1}, "seed must be between"),
        ({"kernel": ["attention"]}, r"kernel must be dict\[str, str\], not"),
        ({"kernel": {"attention": 5}}, r"kernel must be dict\[str, str\], not"),
        ({"hf_overrides": {5: "x"}}, r"hf_overrides must be dict\[str, Any\], not"),
        ({"disable_plugins": "demo"}, r"disable_plugins must be list\[str\], not"),
        ({"disable_plugins": [5]}, r"disable_plugins must be list\[str\], not"),
        ({"max_model_len": 1}, "max_model_len must be between 2 and"),
        ({"engine_stall_timeout_s": math.nan}, "must be at least 0.1, not nan"),
        ({"model": 7}, "model must be str, not 7"),
        ({"speculative_config": 4}, r"speculative_config must be dict\[str, Any\] or null"),
        ({"speculative_config": {"num_speculative_tokens": 4}}, "speculative_config.method must"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 0}},
            "num_speculative_tokens must be .* not 0",
        ),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 65}},
            "num_speculative_tokens must be a number from 1 to 64, not 65",
        ),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": True}},
            "num_speculative_tokens must be a number from 1 to 64, not True",
        ),
        (
            {"speculative_config": {"method": "ngram", "adaptive": "no"}},
            "adaptive must be true, .* or false, .* not 'no'",
        ),
        (
            {"max_num_sequences": 3},
            r"unknown option max_num_sequences; did you mean max_num_seqs\?",
        ),
        ({"xyzzy": 3}, "unknown option xyzzy$"),
    ],
)
def test_bad_values(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig.from_mapping(values)


def test_dashes_and_underscores_are_one_name() -> None:
    assert EngineConfig.from_mapping({"max-num-seqs": 3}).max_num_seqs == 3


def test_one_word_names_the_method_of_drafts() -> None:
    config = EngineConfig.from_mapping({"speculative_config": "auto"})
    assert config.speculative_config == {"method": "auto"}


def test_speculation_tells_how_many_drafts_there_may_be() -> None:
    assert EngineConfig().num_speculative_tokens == 0
    assert EngineConfig(speculative_config={}).num_speculative_tokens == 0
    assert EngineConfig(speculative_config={"method": "auto"}).num_speculative_tokens == 8
    options = {"method": "ngram", "num_speculative_tokens": 64}
    assert EngineConfig(speculative_config=options).num_speculative_tokens == 64


def test_bounds_are_inclusive() -> None:
    assert EngineConfig(max_num_seqs=1).max_num_seqs == 1
    assert EngineConfig(max_num_seqs=65536).max_num_seqs == 65536


def test_it_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        EngineConfig().seed = 3


def test_defaults_are_not_shared() -> None:
    first, second = EngineConfig(), EngineConfig()
    first.kernel["attention"] = "x"
    assert second.kernel == {}


def test_changes_make_a_copy_that_is_validated() -> None:
    config = EngineConfig()
    changed = config.resolve_changes([Change("block_size", 32, "why"), Change("seed", 3, "why")])
    assert (changed.block_size, changed.seed) == (32, 3)
    assert config == EngineConfig()
    assert config.resolve_changes([]) == config
    with pytest.raises(ConfigError, match="block_size"):
        config.resolve_changes([Change("block_size", 0, "why")])


def test_it_survives_a_round_trip() -> None:
    config = replace(EngineConfig(), kernel={"attention": "x"}, max_model_len=7)
    assert EngineConfig.from_mapping(asdict(config)) == config


def test_every_field_has_a_help_text() -> None:
    for field in fields(EngineConfig):
        assert len(field.metadata["help"]) > 10, field.name
        assert not field.metadata["help"].endswith("."), field.name


def test_a_resolved_configuration_has_all_sizes() -> None:
    sizes = {
        "max_model_len": 64,
        "distributed_executor_backend": "uni",
        "block_size": 16,
        "max_num_batched_tokens": 32,
        "async_scheduling": False,
    }
    config = EngineConfig(max_num_seqs=3, **sizes)
    resolved = ResolvedConfig.of(config)
    assert {f.name: getattr(resolved, f.name) for f in fields(EngineConfig)} == asdict(config)
    for name in sizes:
        with pytest.raises(ConfigError, match=f"{name} must be \\w+, not None"):
            ResolvedConfig.of(replace(config, **{name: None}))
    with pytest.raises(ConfigError, match="block_size must be between 1 and 1024, not 0"):
        replace(resolved, block_size=0)
