"""Configurations as transformers' classes write them, and build contexts over plain references."""

import pathlib
from collections.abc import Callable

import pytest
import transformers

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Selector

CPU = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)
TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}


@pytest.fixture
def context() -> Callable[..., BuildContext]:
    def make(**options) -> BuildContext:
        selector = Selector(SLOTS, [], CPU)
        return BuildContext(selector, "float32", "float32", 4, 16, **options)

    return make


@pytest.fixture
def described() -> Callable[..., ModelConfig]:
    """Return config.json as the class of a model writes it."""

    def make(kind: str, **values) -> ModelConfig:
        model = getattr(transformers, kind)
        written = model.config_class(**{**TINY, **values}).to_dict()
        return ModelConfig(pathlib.Path("model"), kind, written, "float32", 16, ())

    return make
