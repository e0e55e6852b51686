"""What a configuration means for models that keep states of sequences, and what of these moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hotshoe.config import EngineConfig
from hotshoe.executor import KVDescriptor
from hotshoe.layers.cache import CacheLayer


def draft_options(config: EngineConfig) -> dict[str, Any]:
    """Return what a `BuildContext` says of drafts, and of states: those kept, and their types."""
    conv, state = config.conv_state_dtype, config.state_dtype
    return {
        "checkpoints": config.state_cache_mode,
        "conv_state_dtype": None if conv == "auto" else conv,
        "state_dtype": "float32" if state == "auto" else state,
        "drafts": config.num_speculative_tokens,
        "tree": config.draft_tree,
    }


def described(model: str, layers: Sequence[CacheLayer]) -> KVDescriptor:
    """Return what other engines are told of caches: of states those alone, without inputs of
    drafts; of layers with one scale of all keys and one of all values, these."""
    specs = [layer.cache_spec for layer in layers]
    moved = (
        replace(spec, parts=spec.parts[:-1], drafts=0) if spec.drafts else spec for spec in specs
    )
    own = {number: layer.kv_scales for number, layer in enumerate(layers)}
    scales = {number: tuple(pair.tolist()) for number, pair in own.items() if pair is not None}
    return KVDescriptor(model, tuple(moved), scales)
