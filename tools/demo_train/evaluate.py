"""Measures an exported checkpoint with transformers: held-out perplexity and every case.

The cases and the judge are the plugin's (`hotshoe_demo`); its tests measure with this module, too.
"""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hotshoe_demo import scoring

_WINDOW = 1024
_BATCH = 350  # of an accelerator
_NEW_TOKENS = 200


@torch.inference_mode()
def perplexity(model: Any, ids: list[int], window: int = _WINDOW) -> float:
    """Return the perplexity per token over windows without overlap."""
    total, count = 0.0, 0
    for start in range(0, len(ids) - 1, window):
        part = torch.tensor([ids[start : start + window + 1]], device=model.device)
        logits = model(part[:, :-1]).logits.float()[0]
        losses = torch.nn.functional.cross_entropy(logits, part[0, 1:], reduction="sum")
        total, count = total + losses.item(), count + part.shape[1] - 1
    return math.exp(total / count)


@torch.inference_mode()
def answers(
    model: Any, tokenizer: Any, cases: Sequence[Mapping[str, Any]], batch_size: int = _BATCH
) -> list[str]:
    """Answer cases greedily in left-padded batches, in the order given."""
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
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        batch = tokenizer([prompts[i] for i in chosen], return_tensors="pt", padding=True)
        batch = batch.to(model.device)
        out = model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=_NEW_TOKENS,
            do_sample=False,
        )
        texts = tokenizer.batch_decode(
            out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
        )
        for i, text in zip(chosen, texts, strict=True):
            found[i] = text
    return found


def evaluate(
    checkpoint: Path, cases: list[dict[str, Any]], text: str, device: torch.device
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Measure a checkpoint; return the numbers for evaluation.json and the failed cases."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).to(device)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    value = perplexity(model, ids)
    bits = math.log2(value) * len(ids) / len(text.encode())
    right: dict[str, list[bool]] = defaultdict(list)
    failed = []
    for case, answer in zip(cases, answers(model, tokenizer, cases), strict=True):
        for measure, passed in scoring.score(case, answer).items():
            right[measure].append(passed)
            if not passed:
                failed.append(case | {"measure": measure, "answer": answer})
    numbers = {
        "perplexity": {
            "value": round(value, 3),
            "bits_per_byte": round(bits, 4),
            "tokens": len(ids),
            "window": _WINDOW,
        },
        "accuracy": {
            measure: {"value": round(sum(flags) / len(flags), 4), "cases": len(flags)}
            for measure, flags in sorted(right.items())
        },
    }
    return numbers, failed


def read_cases(path: Path) -> list[dict[str, Any]]:
    """Read cases, one JSON object a line."""
    return [json.loads(line) for line in path.read_text().splitlines()]
