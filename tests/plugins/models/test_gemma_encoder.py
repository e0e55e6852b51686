"""EmbeddingGemma's vectors equal those of transformers."""

import pytest
import torch
from tests.plugins.models.test_bert import OPTIONS, PROMPTS, close, modules, save

from hotshoe import LLM, TokensPrompt
from hotshoe.errors import CheckpointError


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_gemma_attends_in_both_directions(tmp_path, kv_heads) -> None:
    values = {"use_bidirectional_attention": True, "sliding_window": 8, "head_dim": 32}
    values |= {"num_key_value_heads": kv_heads, "query_pre_attn_scalar": 20, "pad_token_id": 0}
    values |= {"bos_token_id": 1, "eos_token_id": 2, "num_hidden_layers": 3}
    values |= {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
    model = save(tmp_path, "Gemma3Text", **values, hidden_size=64)
    modules(tmp_path, "pooling_mode_mean_tokens")
    with LLM(str(tmp_path), max_num_batched_tokens=70, max_num_seqs=3, **OPTIONS) as llm:
        assert llm.engine.info.memory["kv_cache"] == 0
        found = llm.embed([TokensPrompt(p) for p in PROMPTS])
    for prompt, output in zip(PROMPTS, found, strict=True):
        with torch.inference_mode():
            wanted = model(torch.tensor([prompt])).last_hidden_state[0].mean(0)
        close(output.embedding, wanted / wanted.norm(), 2e-5)
    with pytest.raises(CheckpointError, match="is served where it is true"):
        LLM(str(tmp_path), hf_overrides={"use_bidirectional_attention": False}, **OPTIONS)
