"""The bundled checkpoint in transformers, loaded once, and greedy answers from it."""

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers

from hotshoe_demo import MODEL

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
    """Answer cases greedily, in left-padded batches of prompts of like length."""

    def run(cases: Sequence[dict[str, Any]]) -> list[str]:
        prompts = [
            tokenizer.apply_chat_template(
                case["messages"],
                tools=case["tools"] or None,
                add_generation_prompt=True,
                tokenize=False,
                enable_thinking=case.get("enable_thinking", False),
            )
            for case in cases
        ]
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        found = [""] * len(prompts)
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            for i, text in zip(chosen, generate([prompts[i] for i in chosen]), strict=True):
                found[i] = text
        return found

    def generate(prompts: list[str]) -> list[str]:
        batch = tokenizer(prompts, return_tensors="pt", padding=True)
        with torch.inference_mode():
            out = model.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                max_new_tokens=160,
                do_sample=False,
            )
        new = out[:, batch["input_ids"].shape[1] :]
        return tokenizer.batch_decode(new, skip_special_tokens=True)

    return run
