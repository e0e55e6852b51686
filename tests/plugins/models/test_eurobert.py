"""EuroBERT as it is published, with a head for words that is not read."""

from tests.plugins.models.test_bert import OPTIONS, PROMPTS, close, states
from tests.plugins.models.test_encoder import made

from hotshoe import LLM, PoolingParams, TokensPrompt


def test_a_head_for_words_is_not_read(tmp_path) -> None:
    model = made(tmp_path, "EuroBert", "ForMaskedLM")
    with LLM(str(tmp_path), pooling="mean", **OPTIONS) as llm:
        assert llm.engine.info.tasks == ("embed",) and llm.engine.info.memory["kv_cache"] == 0
        [output] = llm.embed(TokensPrompt(PROMPTS[1]), PoolingParams(normalize=False))
    close(output.embedding, states(model.model, PROMPTS[1]).mean(0), 1e-4)
