"""The bundled checkpoint in transformers, loaded once, and greedy answers from it."""

import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from hotshoe_demo import MODEL

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))
from demo_train.evaluate import answers

BATCH = 20
Answer = Callable[[Sequence[dict[str, Any]]], list[str]]


@pytest.fixture(scope="session")
def tokenizer() -> transformers.PreTrainedTokenizerBase:
    return transformers.AutoTokenizer.from_pretrained(MODEL, padding_side="left")


@pytest.fixture(scope="session")
def model() -> transformers.PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)


@pytest.fixture
def few() -> Callable[[list[Any], int], list[Any]]:
    """Choose some items anew in every run."""
    return lambda items, count: secrets.SystemRandom().sample(items, count)


@pytest.fixture(scope="session")
def answer(model, tokenizer) -> Answer:
    """Answer cases greedily, as when the model was measured."""
    return lambda cases: answers(model, tokenizer, cases, BATCH)
