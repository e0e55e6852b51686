"""XGLM: positions that no file has, and what is refused."""

import pytest
import torch
from transformers.models.xglm.modeling_xglm import XGLMSinusoidalPositionalEmbedding

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError, ConfigError
from hotshoe_models.xglm import sines


@pytest.mark.parametrize(("count", "size"), [(40, 4), (70, 64)])
def test_positions_are_theirs(count, size):
    theirs = XGLMSinusoidalPositionalEmbedding(count - 2, size, padding_idx=1).weights
    torch.testing.assert_close(sines(count, size), theirs)


def test_positions_come_back_from_sleep(variants, checkpoints):
    checkpoint = checkpoints.get(variants["xglm"])
    options = {"platform": "cpu", "dtype": "float32", "skip_tokenizer_init": True}
    options |= {"max_model_len": 64, "kv_cache_memory_bytes": 1 << 21}
    prompt, params = TokensPrompt(range(3, 20)), SamplingParams(temperature=0.0, max_tokens=6)
    with LLM(str(checkpoint.path), **options) as llm:
        before = llm.generate(prompt, params)[0].outputs[0].token_ids
        llm.sleep(2)
        llm.wake_up()
        assert llm.generate(prompt, params)[0].outputs[0].token_ids == before


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"d_model": 3, "attention_heads": 1}, CheckpointError, "d_model is 3.*sines as cosines"),
        ({"add_cross_attention": True}, CheckpointError, "add_cross_attention.*its own text"),
        ({"activation_function": "tanh"}, CheckpointError, "activation_function"),
        ({"max_position_embeddings": 8}, ConfigError, "exceeds the 8 positions"),
    ],
)
def test_bad_values_are_named(build_family, values, error, message):
    small = {"d_model": 16, "ffn_dim": 16, "num_layers": 1, "attention_heads": 2}
    with pytest.raises(error, match=message):
        build_family("XGLM", **{**small, **values})
