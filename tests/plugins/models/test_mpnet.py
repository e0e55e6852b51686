"""MPNet with the names that a head for words puts in front of the encoder's."""

import torch
from tests.plugins.models.test_bert import OPTIONS, PROMPTS, close
from tests.plugins.models.test_encoder import made

from hotshoe import LLM, PoolingParams, TokensPrompt


def test_a_head_for_words_is_not_read(tmp_path) -> None:
    model = made(tmp_path, "MPNet", "ForMaskedLM").mpnet
    with LLM(str(tmp_path), pooling="cls", **OPTIONS) as llm:
        assert llm.engine.info.config.max_model_len == 64  # two positions are no token's
        [output] = llm.embed(TokensPrompt(PROMPTS[1]), PoolingParams(normalize=False))
    with torch.inference_mode():
        wanted = model(torch.tensor([PROMPTS[1]])).last_hidden_state[0, 0]
    close(output.embedding, wanted, 1e-4)
