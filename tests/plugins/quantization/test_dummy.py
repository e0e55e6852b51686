"""Random weights in every published form: they load, take what was planned, and give no NaN."""

import json
import math
from pathlib import Path

import pytest
from tests.plugins.quantization.test_checkpoints import EXACT, NEAR, OPTIONS

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.config import EngineConfig
from hotshoe.engine.explain.explanation import explain
from hotshoe.plugins import PluginManager
from hotshoe_conformance.checkpoint import write_model
from hotshoe_conformance.host import host_plugins

#: So wide that padding is little.
WIDE = {"num_hidden_layers": 1, "hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
FORMS = {name: written.config for name, written in (EXACT | NEAR).items()}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict:
    path = write_model("llama", tmp_path_factory.mktemp("source") / "llama", host_plugins(), 3)
    return json.loads((path / "config.json").read_text())


@pytest.mark.parametrize("name", FORMS)
def test_random_weights(name: str, config: dict, tmp_path: Path) -> None:
    own = config | WIDE | {"quantization_config": FORMS[name]}
    (tmp_path / "config.json").write_text(json.dumps(own))
    planned = explain(EngineConfig(str(tmp_path), **OPTIONS), PluginManager())
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, logprobs=2)
    with LLM(str(tmp_path), load_format="dummy", **OPTIONS) as llm:
        held = llm.engine.core.info.weight_bytes
        [result] = llm.generate([TokensPrompt([3, 5, 7])], params)
    [output] = result.outputs
    assert all(math.isfinite(n) for found in output.logprobs for n in found.logprobs)
    assert len(output.token_ids) == 2
    assert held == pytest.approx(planned.memory[0].bytes, rel=0.01)
