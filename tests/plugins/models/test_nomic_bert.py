"""Nomic's files, as published."""

import json

from tests.plugins.models.test_bert import OPTIONS, PROMPTS, close, states
from tests.plugins.models.test_encoder import ATOL, made

from hotshoe import LLM, PoolingParams, TokensPrompt


def test_nomic_publishes_other_keys(tmp_path) -> None:
    model = made(tmp_path, "NomicBert")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["NomicBertModel"],
                "activation_function": "swiglu",
                "n_embd": 64,
                "n_layer": 2,
                "n_head": 4,
                "n_inner": 96,
                "n_positions": 64,
                "layer_norm_epsilon": 1e-12,
                "rotary_emb_base": 50,
                "type_vocab_size": 2,
                "vocab_size": config["vocab_size"],
            }
        )
    )
    with LLM(str(tmp_path), pooling="mean", **OPTIONS) as llm:
        [output] = llm.embed(TokensPrompt(PROMPTS[1]), PoolingParams(normalize=False))
    close(output.embedding, states(model, PROMPTS[1]).mean(0), ATOL)
