"""docs/how-to/serve-a-whole-layer.md, followed to the letter, ends with a pack that conforms and
serves a model."""

import importlib
import json
import re
from pathlib import Path

import pytest

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import EntryPoint, installed_entry_points
from hotshoe.slots.layer_specs import layer_features
from hotshoe_conformance.cases.decoder_layer import VARIATIONS, layer
from hotshoe_conformance.kit import Kit, Options

BLOCK = re.compile(r'^```python title="([^"]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}


@pytest.fixture
def plugins(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginManager:
    """The installed plugins and the page's."""
    page = (root / "docs/how-to/serve-a-whole-layer.md").read_text(encoding="utf-8")
    for title, text in BLOCK.findall(page):
        (tmp_path / title).parent.mkdir(exist_ok=True)
        (tmp_path / title).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin = importlib.import_module("hotshoe_whole.plugin")
    own = EntryPoint("whole", "hotshoe-whole", "0.1", lambda: plugin)
    return PluginManager([*installed_entry_points(), own])


def test_the_page_leads_to_a_layer_that_conforms(plugins: PluginManager) -> None:
    options = Options(quick=True, slot="decoder_layer", candidate="whole")
    report = Kit("cpu", options, plugins).run()
    [found] = report.slots[0].candidates
    assert found.passed
    assert not report.defects
    assert any("does not list sinks" in reason for reason in found.reasons)


def test_every_feature_is_on_the_page(root: Path) -> None:
    page = (root / "docs/how-to/serve-a-whole-layer.md").read_text(encoding="utf-8")
    found = frozenset[str]().union(*(layer_features(layer(**v)) for v in VARIATIONS))
    assert len(found) > 10
    assert [name for name in found if f"`{name}`" not in page] == []


def test_a_model_runs_on_it(plugins: PluginManager, tmp_path: Path) -> None:
    """Prompts, decodes and drafts, as the composed layers compute them."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    prompts = [TokensPrompt([5, 6, 7, 5, 6, 7, 5, 6]), TokensPrompt(list(range(3, 40)))]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    found = []
    for kernel, drafts in (({}, 0), ({"decoder_layer": "composed"}, 0), ({}, 2)):
        speculation = (
            {"method": "ngram", "num_speculative_tokens": drafts, "adaptive": False}
            if drafts
            else None
        )
        llm = LLM(
            str(tmp_path),
            platform="cpu",
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=96,
            max_num_seqs=2,
            seed=3,
            kernel=kernel,
            speculative_config=speculation,
            plugins=plugins,
        )
        try:
            outputs = llm.generate(prompts, params)
            [chosen] = {
                d.chosen for d in llm.engine.core.info.decisions if d.slot == "decoder_layer"
            }
        finally:
            llm.close()
        assert chosen == ("composed" if kernel else "whole")
        found.append([output.outputs[0].token_ids for output in outputs])
    assert found[0] == found[1] == found[2]
