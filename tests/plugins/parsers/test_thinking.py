"""Reasoning between markers: samples, in every two pieces, and what prompts open."""

import pytest

from hotshoe.lazy import resolve_lazy
from hotshoe_parsers.plugin import REASONING_FORMATS

FORMATS = {
    name: resolve_lazy(place) for name, place in REASONING_FORMATS.items() if "thinking" in place
}


def test_samples(check_sample, sample) -> None:
    check_sample(FORMATS[sample.get("format", "qwen3")], sample)


@pytest.mark.parametrize(
    ("name", "prompt", "reasons"),
    [
        ("qwen3", "<|im_start|>assistant\n<think>\n", True),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("qwen3", "What is <think>?<|im_start|>assistant\n", False),
        ("deepseek_r1", "<｜Assistant｜>", True),
        ("deepseek_r1", "<｜Assistant｜><think>\n", True),
        ("deepseek_r1", "<｜Assistant｜></think>", False),
        ("mistral", "[/INST][THINK]", True),
        ("gemma4", "<|turn>model\n<|channel>thought\n", True),
        ("gemma4", "<|turn>model\n<|channel>thought\n<channel|>", False),
        ("gemma4", "<|turn>model\n", False),
        ("hunyuan_a13b", "<|extra_0|><think>\n\n</think>\n", False),
        ("seed_oss", "<seed:bos>assistant\n<seed:think>", True),
    ],
)
def test_prompts_that_open_reasoning(run, name: str, prompt: str, reasons: bool) -> None:
    found = FORMATS[name]
    assert found.reasons_after(prompt) is reasons
    (event,) = run(found, ["Hm"], prompt)
    assert type(event).__name__ == ("ReasoningDelta" if reasons else "ContentDelta")
