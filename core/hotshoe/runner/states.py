"""What a configuration means for models that keep states of sequences, and what they cannot do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError
from hotshoe.types.cache import CacheSpec


def state_options(config: EngineConfig) -> dict[str, Any]:
    """Return what a `BuildContext` says of states: those kept, and their types."""
    conv, state = config.conv_state_dtype, config.state_dtype
    return {
        "checkpoints": config.state_cache_mode,
        "conv_state_dtype": None if conv == "auto" else conv,
        "state_dtype": "float32" if state == "auto" else state,
    }


def check_states(config: EngineConfig, specs: Sequence[CacheSpec]) -> None:
    """Refuse a configuration that a model with states cannot serve.

    Raises:
        ConfigError: It asks for drafts; a state cannot go back to where it was before them.
    """
    if config.speculative_config and any(spec.kind == "state" for spec in specs):
        raise ConfigError(
            "speculative_config: this model keeps a state of each sequence, which cannot go back "
            "where drafts are refused; leave speculative_config out"
        )
