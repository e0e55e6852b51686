"""Whether drafts may be trees is found once, before anything is loaded, and said."""

import json
from pathlib import Path

import pytest
from tests.plugins.models.test_further import LATENT, SIZES

from hotshoe.config import EngineConfig
from hotshoe.engine.start.setup import EngineSetup, prepare
from hotshoe.engine.start.trees import chained
from hotshoe.plugins import PluginManager

TREE = "[(0,), (1,), (0, 0), (0, 1)]"
MIMO = {"architectures": ["MiMoForCausalLM"]}
DEEPSEEK = {"architectures": ["DeepseekV3ForCausalLM"], **LATENT, "first_k_dense_replace": 1}
STATES = {
    "architectures": ["Qwen3NextForCausalLM"],
    "layer_types": ["linear_attention", "full_attention"],
    "num_experts": 4,
    "shared_expert_intermediate_size": 32,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}


def asked(path: Path, values: dict[str, object], **options: object) -> tuple[str, EngineSetup]:
    """Ask for a tree; return why there are chains, and the setup."""
    own = {**SIZES, "max_position_embeddings": 64, "num_nextn_predict_layers": 1, **values}
    (path / "config.json").write_text(json.dumps(own | {"torch_dtype": "float32"}))
    drafts = {"method": "mtp", "speculative_token_tree": TREE}
    settings = {"load_format": "dummy", "skip_tokenizer_init": True, "platform": "cpu"} | options
    config = EngineConfig(str(path), speculative_config=drafts, **settings)
    setup = prepare(config, PluginManager())
    return chained(config, setup), setup


def test_a_tree_stays_where_every_layer_takes_it(tmp_path: Path) -> None:
    why, setup = asked(tmp_path, MIMO)
    assert why == "" and setup.config.draft_tree is not None
    assert not any(change.field == "speculative_config" for change in setup.changes)
    assert not setup.selector.decisions  # it was built on paper


@pytest.mark.parametrize(
    ("values", "options", "cause"),
    [
        (DEEPSEEK, {}, "caches of kind latent"),
        (STATES, {}, "caches of kind state"),
        (MIMO, {"pipeline_parallel_size": 2}, "pipeline_parallel_size 2"),
    ],
    ids=["latents", "states", "stages"],
)
def test_else_there_are_chains_and_a_reason(
    tmp_path: Path, values: dict[str, object], options: dict[str, object], cause: str
) -> None:
    why, setup = asked(tmp_path, values, **options)
    assert why.startswith("chains, not trees: ") and cause in why
    assert setup.config.speculative_config == {"method": "mtp", "num_speculative_tokens": 2}
    assert [change.reason for change in setup.changes if change.field.startswith("spec")] == [why]
