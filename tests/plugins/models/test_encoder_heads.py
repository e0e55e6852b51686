"""Classes of texts, of pairs and of tokens equal those of transformers, of every encoder."""

import pytest
from tests.plugins.models.test_bert import OPTIONS, PROMPTS, SEPARATOR, close, states
from tests.plugins.models.test_encoder import ATOL, FAMILIES, logits, made

from hotshoe import LLM, PoolingParams, TokensPrompt
from hotshoe.errors import RequestError


@pytest.mark.parametrize("family", FAMILIES)
def test_classes_are_those_of_transformers(tmp_path, family) -> None:
    model = made(tmp_path, family, "ForSequenceClassification", num_labels=3)
    params = PoolingParams(task="classify", use_activation=False)
    with LLM(str(tmp_path), max_num_batched_tokens=70, max_num_seqs=3, **OPTIONS) as llm:
        assert llm.engine.info.tasks == ("classify", "token_embed")
        found = llm.classify([TokensPrompt(p) for p in PROMPTS], params)
    for prompt, output in zip(PROMPTS, found, strict=True):
        close(output.probs, logits(model, prompt), ATOL)


@pytest.mark.parametrize("family", FAMILIES)
def test_classes_of_tokens_are_those_of_transformers(tmp_path, family) -> None:
    model = made(tmp_path, family, "ForTokenClassification", id2label={0: "O", 1: "B", 2: "I"})
    raw = PoolingParams(task="token_classify", use_activation=False)
    prompts = [TokensPrompt(p) for p in PROMPTS]
    with LLM(str(tmp_path), max_num_batched_tokens=70, max_num_seqs=3, **OPTIONS) as llm:
        assert llm.engine.info.tasks == ("token_classify", "token_embed")
        found, likely = llm.token_classify(prompts, raw), llm.token_classify(prompts)
        with pytest.raises(RequestError, match="no head for classes"):
            llm.classify(prompts)
    for prompt, output, probable in zip(PROMPTS, found, likely, strict=True):
        wanted = logits(model, prompt)
        close(output.vectors, wanted, ATOL)
        close(probable.vectors, wanted.softmax(1), ATOL)
        assert output.labels == ["OBI"[i] for i in wanted.argmax(1).tolist()]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_modernbert_says_which_state_its_head_reads(tmp_path, pooling) -> None:
    values = {"classifier_pooling": pooling, "classifier_bias": True, "norm_bias": True}
    values |= {"classifier_activation": "silu", "num_labels": 2}
    model = made(tmp_path, "ModernBert", "ForSequenceClassification", **values)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        [output] = llm.classify(TokensPrompt(PROMPTS[1]))
    close(output.probs, logits(model, PROMPTS[1]).softmax(0), ATOL)


def test_a_model_of_pairs_gives_the_second_text_its_type(tmp_path) -> None:
    values = {"num_labels": 1, "sep_token_id": SEPARATOR}
    model = made(tmp_path, "Bert", "ForSequenceClassification", **values)
    pair = [1, 5, 6, SEPARATOR, 7, 8, 9, SEPARATOR]
    with LLM(str(tmp_path), pooling="mean", **OPTIONS) as llm:
        assert llm.engine.info.tasks == ("classify", "embed", "token_embed")
        [output] = llm.classify(TokensPrompt(pair))
        [vector] = llm.embed(TokensPrompt(pair), PoolingParams(normalize=False))
    types = [0] * 4 + [1] * 4
    close(output.probs, logits(model, pair, types).sigmoid(), ATOL)
    close(vector.embedding, states(model.bert, pair, types).mean(0), ATOL)
