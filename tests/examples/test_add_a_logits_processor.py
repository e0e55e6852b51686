"""docs/how-to/add-a-logits-processor.md, followed to the letter: its processor, through an engine.

Answers must not depend on what the engine does beside them: drafts, steps under way at once,
prompts in parts, preemption.
"""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import ConfigError, RequestError
from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import EntryPoint, installed_entry_points

BLOCK = re.compile(r'^```python title="([^"]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float32",
}
DRAFTS = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}}
#: Room for 6 blocks of 16 tokens, where a request needs 4.
SHORT = {"kv_cache_memory_bytes": 6 * 16 * 2 * 16 * 4, "block_size": 16, "max_model_len": 64}
SETTINGS = {
    "drafts": DRAFTS,
    "overlapped": {"async_scheduling": True},
    "everything": {**DRAFTS, **SHORT, "async_scheduling": True, "max_num_batched_tokens": 9},
}
PROMPTS = [[1, 2, 3, 1, 2, 3, 1, 2], [5], [7, 7, 7, 7, 9, 9, 9, 9], [1, 2, 3, 1, 2, 3, 4]]
SPANS = [0, 3, 5, 2]


@pytest.fixture
def pack(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginManager:
    page = (root / "docs/how-to/add-a-logits-processor.md").read_text(encoding="utf-8")
    for title, text in BLOCK.findall(page):
        (tmp_path / title).parent.mkdir(exist_ok=True)
        (tmp_path / title).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin = importlib.import_module("hotshoe_no_echo.plugin")
    monkeypatch.delitem(sys.modules, "hotshoe_no_echo.processor", raising=False)
    own = EntryPoint("no_echo", "hotshoe-no-echo", "0.1", lambda: plugin)
    return PluginManager([*installed_entry_points(), own])


def opened(pack: PluginManager, folder: Path, **options: object) -> LLM:
    (folder / "config.json").write_text(json.dumps(SHAPE))
    fixed = {"load_format": "dummy", "skip_tokenizer_init": True, "platform": "cpu", "seed": 3}
    return LLM(str(folder), plugins=pack, **{**fixed, **options})


def params(span: int, **more: object) -> SamplingParams:
    given = {"no_echo": span} if span else {}
    return SamplingParams(temperature=0, max_tokens=50, ignore_eos=True, extra_args=given, **more)


def answers(llm: LLM) -> list[list[int]]:
    prompts = [TokensPrompt(prompt) for prompt in PROMPTS]
    outputs = llm.generate(prompts, [params(span) for span in SPANS])
    return [output.outputs[0].token_ids for output in outputs]


def test_answers_follow_it_whatever_the_engine_does_beside_them(
    pack: PluginManager, tmp_path: Path
) -> None:
    with opened(pack, tmp_path, logits_processors=["no_echo"]) as llm:
        expected = answers(llm)
    for prompt, span, answer in zip(PROMPTS, SPANS, expected, strict=True):
        whole = [*prompt, *answer]
        for at in range(len(prompt), len(whole)):
            assert whole[at] not in whole[max(at - span, 0) : at] or not span
    with opened(pack, tmp_path) as plain:
        assert (
            plain.generate(TokensPrompt(PROMPTS[0]), params(0))[0].outputs[0].token_ids
            == (expected[0])
        )
    for options in SETTINGS.values():
        named = {"logits_processors": ["hotshoe_no_echo.processor:NoEcho"]}
        with opened(pack, tmp_path, **named, **options) as llm:
            assert answers(llm) == expected
            if "max_model_len" in options:
                assert llm.stats().num_preemptions > 0


def test_mistakes_of_requests_are_named(pack: PluginManager, tmp_path: Path) -> None:
    with opened(pack, tmp_path, logits_processors=["no_echo"]) as llm:
        with pytest.raises(RequestError, match=r"no_echo must be an integer.* most 64, not 65"):
            llm.generate(TokensPrompt([1]), params(65))
        wrong = SamplingParams(extra_args={"no_ehco": 1})
        with pytest.raises(RequestError, match="did you mean no_echo") as caught:
            llm.generate(TokensPrompt([1]), wrong)
        assert caught.value.field == "extra_args.no_ehco"


def test_a_worker_that_samples_itself_runs_no_processors(
    pack: PluginManager, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="logits_processors: platform null samples in a worker"):
        opened(pack, tmp_path, platform="null", logits_processors=["no_echo"])
