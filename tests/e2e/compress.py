"""Quantizes a model with llm-compressor, and says what transformers then computes.

    python tests/e2e/compress.py MODEL FOLDER SCHEME...

A program of its own, since llm-compressor wants an environment of its own. FOLDER gets a checkpoint
for each scheme, and beside it `expected.pt`: token ids [n], and the logits [n, vocab_size] behind
each of them alone. Longer texts prove less: where x is rounded, one number that falls to the other
side moves all that come behind it. Schemes behind GPTQ- are calibrated.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from transformers import AutoModelForCausalLM, AutoTokenizer

SEED, TOKENS, SAMPLES, LENGTH = 5, 24, 16, 64


def recipe_of(scheme: str) -> tuple[Any, dict[str, Any]]:
    """Return what quantizes, and further arguments of the call."""
    kept = {"targets": "Linear", "ignore": ["lm_head"]}
    name = scheme.removeprefix("GPTQ-")
    calibrated = name != scheme
    if not calibrated and name != "NVFP4":
        return QuantizationModifier(scheme=name, **kept), {}
    ids = torch.randint(5, 2000, (SAMPLES, LENGTH)).tolist()
    data = Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * LENGTH] * SAMPLES})
    further = {"num_calibration_samples": SAMPLES, "max_seq_length": LENGTH, "dataset": data}
    modifier = GPTQModifier if calibrated else QuantizationModifier
    return modifier(scheme=name, **kept), further


def to_int8(module: torch.nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    """Round each token's x to 127 steps, as kernels do; llm-compressor counts 127.5."""
    scale = args[0].abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return ((args[0] / scale).round() * scale,)


@contextmanager
def as_served(model: torch.nn.Module) -> Iterator[None]:
    """Round x as engines do while active: to 8 bits, and not to four."""
    found = {m: m.quantization_scheme for m in model.modules() if hasattr(m, "quantization_scheme")}
    hooks = []
    for module, scheme in found.items():
        x = scheme.input_activations
        if x is None or (x.num_bits, x.type) == (8, "float"):
            continue
        module.quantization_scheme = scheme.model_copy(update={"input_activations": None})
        if x.num_bits == 8:
            hooks.append(module.register_forward_pre_hook(to_int8))
    yield
    for hook in hooks:
        hook.remove()
    for module, scheme in found.items():
        module.quantization_scheme = scheme


def main() -> None:
    source, folder = sys.argv[1], Path(sys.argv[2])
    tokenizer = AutoTokenizer.from_pretrained(source)
    for scheme in sys.argv[3:]:
        torch.manual_seed(SEED)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        recipe, further = recipe_of(scheme)
        oneshot(model=model, recipe=recipe, tokenizer=tokenizer, **further)
        ids = torch.randint(5, model.config.vocab_size - 200, (TOKENS,))
        with as_served(model), torch.no_grad():
            logits = model(ids[:, None]).logits[:, 0].float()
        model.save_pretrained(folder / scheme, save_compressed=True)
        tokenizer.save_pretrained(folder / scheme)
        torch.save((ids, logits), folder / scheme / "expected.pt")
        print(scheme, flush=True)


if __name__ == "__main__":
    main()
