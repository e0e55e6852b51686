"""Hotshoe: an LLM inference and serving engine whose core knows no hardware.

The names below load on first use, so that `import hotshoe` stays light.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotshoe.config import EngineConfig
    from hotshoe.engine.api.async_engine import AsyncEngine
    from hotshoe.engine.api.llm import LLM
    from hotshoe.types import (
        BeamSearchParams,
        EmbedsPrompt,
        GrammarSpec,
        PoolingParams,
        RequestOutput,
        SamplingParams,
        TextPrompt,
        TokensPrompt,
    )

__version__ = "0.1.0"

_LAZY = {
    "AsyncEngine": "hotshoe.engine.api.async_engine",
    "BeamSearchParams": "hotshoe.types",
    "EmbedsPrompt": "hotshoe.types",
    "EngineConfig": "hotshoe.config",
    "GrammarSpec": "hotshoe.types",
    "LLM": "hotshoe.engine.api.llm",
    "PoolingParams": "hotshoe.types",
    "RequestOutput": "hotshoe.types",
    "SamplingParams": "hotshoe.types",
    "TextPrompt": "hotshoe.types",
    "TokensPrompt": "hotshoe.types",
}

__all__ = [
    "LLM",
    "AsyncEngine",
    "BeamSearchParams",
    "EmbedsPrompt",
    "EngineConfig",
    "GrammarSpec",
    "PoolingParams",
    "RequestOutput",
    "SamplingParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'hotshoe' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
