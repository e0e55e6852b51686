"""Weights in host memory, on a device whose copies spoil their target until they are waited for.

Every answer has to be that of an engine with all weights on the device, recorded or not, and after
new weights came.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hotshoe_sim import plugin

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import ConfigError
from hotshoe.loader.sources import Dummy
from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import EntryPoint, installed_entry_points

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": 0,
}
MIXTURE = MODEL | {
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
}
OPTIONS = {
    "platform": "sim",
    "load_format": "dummy",
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "block_size": 4,
    "kv_cache_memory_bytes": 1 << 18,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 24,
}
#: Of the matrices of one layer of MODEL, on paper.
LAYER_BYTES = 4 * 32 * (4 * 8 + 2 * 2 * 8 + 32 + 3 * 48)
PROMPTS = [TokensPrompt([(7 * i * n + 3) % 61 for i in range(n)]) for n in (3, 9)]
GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logprobs=3)


def answers(llm: LLM) -> tuple[list[list[int]], torch.Tensor]:
    """Return tokens, and the log probabilities of the likeliest at each place."""
    found = [result.outputs[0] for result in llm.generate(PROMPTS, GREEDY)]
    values = [[one.logprobs[0] for one in output.logprobs or ()] for output in found]
    return [output.token_ids for output in found], torch.tensor(values)


def assert_same(found: tuple[object, torch.Tensor], wanted: tuple[object, torch.Tensor]) -> None:
    """Compare answers; steps of other shapes round otherwise."""
    assert found[0] == wanted[0]
    torch.testing.assert_close(found[1], wanted[1], rtol=0, atol=1e-4)


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """Let the collector, which each engine calls, pass over what importing made."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def made(tmp_path: Path):
    """Make engines of a model's configuration; seeds tell weights apart."""
    engines: list[LLM] = []
    points = [p for p in installed_entry_points() if p.name != "sim"]
    points.append(EntryPoint("sim", "hotshoe-platform-sim", "0", lambda: plugin))

    def make(model: Mapping[str, object] = MODEL, **options: object) -> LLM:
        (tmp_path / "config.json").write_text(json.dumps(model))
        engines.append(LLM(str(tmp_path), plugins=PluginManager(points), **{**OPTIONS, **options}))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.mark.parametrize(
    ("model", "options", "saved_layers"),
    [
        (MODEL, {"offload_weights": r"layers\.[1-4]\."}, 2),
        (MODEL, {"cpu_offload_gb": LAYER_BYTES / 2**30, "enforce_eager": True}, 1),
        (MIXTURE, {"offload_weights": r"experts\.0\.", "enforce_eager": True}, None),
    ],
    ids=["recorded", "by size", "experts"],
)
def test_answers_are_those_of_weights_on_the_device(
    made, model: Mapping[str, object], options: Mapping[str, object], saved_layers: int | None
) -> None:
    whole = made(model)
    expected, held = answers(whole), whole.engine.core.info.weight_bytes
    whole.close()
    away = made(model, **options)
    info = away.engine.core.info
    assert_same(answers(away), expected)
    assert info.weight_bytes < held
    assert saved_layers is None or held - info.weight_bytes == saved_layers * LAYER_BYTES
    assert "in host memory; each step copies them" in str(info.report["offloaded weights"])


def test_what_would_save_nothing_or_too_little_is_refused(made) -> None:
    for options, message in (
        ({"cpu_offload_gb": 1.0}, "cpu_offload_gb 1: at most 0.000 GiB"),
        ({"offload_weights": r"layers\.[12]\."}, "no three layers"),
    ):
        with pytest.raises(ConfigError, match=message):
            made(**options)


def test_new_weights(made) -> None:
    away = made(offload_weights="proj", seed=8)
    before = answers(away)
    other = made(seed=9)
    expected = answers(other)
    table = other.engine.core.workers.main._context.weights.expected
    source = Dummy(table, torch.float32, 9, "cpu")
    away.engine.core.update_weights([(name, source.tensor(name)) for name in table])
    other.close()
    assert before[0] != expected[0]
    assert_same(answers(away), expected)
