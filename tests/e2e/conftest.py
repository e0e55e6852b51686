"""A small dummy model, and the platforms to run it on: plain references, and the real CPU one."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from hotshoe import LLM
from hotshoe.platform import Available, DeviceFacts, Platform
from hotshoe.plugins import PluginManager, hookimpl
from hotshoe.plugins.hookspecs import HOOK_API
from hotshoe.plugins.manager import EntryPoint, installed_entry_points

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


class Plain(Platform):
    """Ordinary memory and no kernel: every slot runs on its reference."""

    name = "plain"

    def probe(self) -> Available:
        return Available(score=-1)

    def facts(self) -> DeviceFacts:
        return DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 28, 1)


class PlainPlugin:
    """Offers the plain platform."""

    HOTSHOE_HOOK_API = HOOK_API

    @hookimpl
    def hotshoe_platforms(self) -> dict[str, object]:
        return {"plain": Plain}


@pytest.fixture
def plugins() -> PluginManager:
    """Everything that is installed, and the plain platform."""
    own = EntryPoint("plain", "tests", "0", PlainPlugin)
    return PluginManager([*installed_entry_points(), own])


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """config.json and a tokenizer of bytes; weights are random."""
    path = tmp_path_factory.mktemp("dummy")
    (path / "config.json").write_text(json.dumps(CONFIG))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    return path


#: References take three times as long as kernels, and tests of models run engines on them, too.
@pytest.fixture(params=[pytest.param("plain", marks=pytest.mark.slow), "cpu"])
def platform(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def open_llm(model_dir: Path, plugins: PluginManager, platform: str) -> Callable[..., LLM]:
    """Open the dummy model; options as for LLM."""

    def build(**options: object) -> LLM:
        settings = {"platform": platform, "load_format": "dummy", "max_num_seqs": 8, "seed": 3}
        return LLM(str(model_dir), plugins=plugins, **{**settings, **options})

    return build
