"""Classes equal those of transformers, of every family that has a head for them."""

import json

import pytest
import torch
import transformers
from safetensors.torch import save_file
from tests.plugins.models.test_published import internlm2
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn

from hotshoe import LLM, PoolingParams, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError, RequestError
from hotshoe_models.plugin import CLASSIFIERS, DECODER_TOKEN_CLASSIFIERS

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
#: What families need beside SIZES.
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
LATENT_EXPERTS = {
    **LATENT,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
MORE = {
    "AXK1": LATENT_EXPERTS,
    "AXK2": LATENT_EXPERTS,
    "DeepseekV2": LATENT_EXPERTS,
    "DeepseekV3": LATENT_EXPERTS,
    "GPT2": {"n_head": 4, "n_layer": 2},
    "GPTBigCode": {"n_head": 4, "n_layer": 2},
    "GPTJ": {"n_head": 4, "n_layer": 2, "rotary_dim": 8},
    "GPTNeo": {"attention_types": [[["global", "local"], 1]]},
    "GPTNeoX": {"partial_rotary_factor": 0.5},
    "HunYuanMoEV1": {
        "head_dim": 16,
        "num_experts": 4,
        "moe_topk": 2,
        "moe_intermediate_size": None,
    },
    "Jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 4,
        "mamba_d_state": 8,
    },
    "MiniCPM3": LATENT,
    "MiniMax": {"num_local_experts": 4, "head_dim": 16},
    "Mistral4": LATENT_EXPERTS,
    "OPT": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "Phimoe": {"num_local_experts": 4},
    "Zamba": {
        "layers_block_type": ["hybrid", "hybrid"],
        "num_key_value_heads": 4,
        "mamba_d_state": 16,
    },
    "Zamba2": {
        "layers_block_type": ["mamba", "hybrid"],
        "hybrid_layer_ids": [1],
        "num_mem_blocks": 1,
        "num_key_value_heads": 4,
        "mamba_d_state": 16,
        "mamba_headdim": 16,
        "n_mamba_heads": 8,
        "adapter_rank": 8,
        "use_mem_rope": True,
    },
    "Gemma3Text": {"head_dim": 16, "sliding_window": 8},
    "Gemma": {"head_dim": 16},
    "Gemma2": {"head_dim": 16, "sliding_window": 8},
    "Glm": {"head_dim": 16},
    "Glm4": {"head_dim": 16},
    "GptOss": {"head_dim": 16, "num_local_experts": 4, "sliding_window": 8},
    "Helium": {"head_dim": 16},
    "HunYuanDenseV1": {"head_dim": 16},
    "Ministral": {"head_dim": 16},
    "Mixtral": {"num_local_experts": 4},
    "Qwen2Moe": {"num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 32},
    "Qwen3": {"head_dim": 16},
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "Qwen3Next": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "shared_expert_intermediate_size": 32,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "SeedOss": {"head_dim": 16},
}
MORE["Qwen3_5Text"] = MORE["Qwen3Next"]
PROMPTS = [[5, 9, 3], list(range(3, 60)), [7], [5, 9, 3, 4, 4, 4, 8, 5, 6]]
OPTIONS = {"platform": "cpu", "dtype": "float32", "skip_tokenizer_init": True, "block_size": 8}
OF_TEXTS, OF_TOKENS = "ForSequenceClassification", "ForTokenClassification"
FAMILIES = [name.partition("For")[0] for name in CLASSIFIERS if name.endswith(OF_TEXTS)]
TOKEN_FAMILIES = [
    name.partition("For")[0] for name in DECODER_TOKEN_CLASSIFIERS if name.endswith(OF_TOKENS)
]


def save(path, family, use=OF_TEXTS, **values):
    """Save a checkpoint with random weights, and return transformers' model."""
    kind = getattr(transformers, f"{family}{use}")
    config = kind.config_class(**{**SIZES, **MORE.get(family, {}), **values})
    torch.manual_seed(7)
    model = kind(config).eval()
    head = model.score if hasattr(model, "score") else model.classifier
    for weight in head.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    model.save_pretrained(path)
    return model


@torch.inference_mode()
def logits(model, prompt):
    return model(torch.tensor([prompt])).logits[0]


def close(found, expected, atol=1e-4):
    torch.testing.assert_close(torch.tensor(found), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_the_logits_of_transformers(tmp_path, family) -> None:
    model = save(tmp_path, family, num_labels=3)
    params = PoolingParams(task="classify", use_activation=False)
    with LLM(str(tmp_path), max_num_batched_tokens=32, max_num_seqs=3, **OPTIONS) as llm:
        found = llm.classify([TokensPrompt(p) for p in PROMPTS], params)
    for prompt, output in zip(PROMPTS, found, strict=True):
        close(output.probs, logits(model, prompt))


@pytest.mark.parametrize("family", TOKEN_FAMILIES)
def test_classes_of_tokens_are_those_of_transformers(tmp_path, family) -> None:
    model = save(tmp_path, family, OF_TOKENS, id2label={0: "O", 1: "B", 2: "I"})
    params = PoolingParams(task="token_classify", use_activation=False)
    prompts = [TokensPrompt(p) for p in PROMPTS]
    with LLM(str(tmp_path), max_num_batched_tokens=32, max_num_seqs=3, **OPTIONS) as llm:
        assert llm.engine.info.tasks == ("token_classify",)
        for _ in range(2):  # the second time with prefixes in the cache
            found = llm.token_classify(prompts, params)
            for prompt, output in zip(PROMPTS, found, strict=True):
                wanted = logits(model, prompt)
                close(output.vectors, wanted)
                assert output.labels == ["OBI"[i] for i in wanted.argmax(1).tolist()]


STEP = 11
SOLUTION = [5, 9, STEP, *range(12, 50), STEP, STEP, 4]
SCATTERED = [[STEP], SOLUTION, [3, 4, STEP, 6], [STEP] * 40]


def test_rewards_of_steps_are_those_of_the_published_code(tmp_path) -> None:
    """As the published code of Qwen2.5-Math-PRM does: two matrices, softmax, at step tokens."""
    config = transformers.Qwen2Config(**SIZES, architectures=["Qwen2ForProcessRewardModel"])
    torch.manual_seed(7)
    model = transformers.Qwen2Model(config).eval()
    head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"score.{name}": tensor for name, tensor in head.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    config.save_pretrained(tmp_path)
    words = save_tokenizer(tmp_path)
    words.add_special_tokens(["<extra_0>"])
    words.save(str(tmp_path / "tokenizer.json"))
    with LLM(str(tmp_path), **WITH_TEXT) as llm:
        info = llm.engine.info
        assert info.classifier is not None
        assert info.classifier.step_token == words.token_to_id("<extra_0>")
        with pytest.raises(RequestError, match="which ends a step"):
            llm.token_classify("a panda <extra_0>")  # whose author is not trusted with tokens
    steps = {"step_token": STEP}
    llm = LLM(str(tmp_path), hf_overrides=steps, max_num_batched_tokens=16, **OPTIONS)
    with llm, torch.inference_mode():
        for _ in range(2):
            found = llm.token_classify([TokensPrompt(p) for p in SCATTERED])
            for prompt, output in zip(SCATTERED, found, strict=True):
                states = model(torch.tensor([prompt])).last_hidden_state[0]
                ends = [i for i, token in enumerate(prompt) if token == STEP]
                close(output.vectors, head(states[ends]).softmax(1))
                assert len(output.labels) == len(ends)
        with pytest.raises(RequestError, match="which ends a step"):
            llm.token_classify(TokensPrompt([3, 4]))
    with (
        LLM(str(tmp_path), allow_special_tokens_in_text=True, **WITH_TEXT) as llm,
        torch.inference_mode(),
    ):
        [output] = llm.token_classify("what is a panda ? <extra_0> a bear <extra_0>")
        assert len(output.vectors) == 2


def test_words_of_the_output_matrix_are_classes_of_steps(tmp_path) -> None:
    """As Math-Shepherd answers, which is a model that generates."""
    model = save_generator(tmp_path, "Mistral")
    save_tokenizer(tmp_path)
    overrides = {
        "architectures": ["MistralForTokenClassification"],
        "classifier_from_token": ["yes", "no"],
        "step_token": "?",
    }
    ids = [5, 6, 7, 8, 9, 7, 10, 9]
    with LLM(str(tmp_path), hf_overrides=overrides, **WITH_TEXT) as llm:
        [output] = llm.token_classify(TokensPrompt(ids))
    close(output.vectors, logits(model, ids)[[4, 7]][:, [4, 3]].softmax(1))


def test_vectors_of_whole_prompts_do_not_come_from_the_cache(tmp_path) -> None:
    model = save(tmp_path, "Llama", num_labels=2)
    prompt = PROMPTS[1]
    with torch.inference_mode():
        states = model.model(torch.tensor([prompt])).last_hidden_state[0]
    wanted = {"max": states.amax(0), "cls": states[0], "mean": states.mean(0)}
    for pooling, vector in wanted.items():
        with LLM(str(tmp_path), pooling=pooling, **OPTIONS) as llm:
            for _ in range(2):
                [output] = llm.embed(TokensPrompt(prompt), PoolingParams(normalize=False))
                close(output.embedding, vector)


#: A part that sees, which no text needs.
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "depth": 1,
    "num_attention_heads": 2,
    "num_heads": 2,
    "image_size": 28,
    "out_hidden_size": 64,
}


@pytest.mark.parametrize("family", ["Gemma3", "Qwen3_5"])
def test_text_parts_have_classes(tmp_path, family) -> None:
    kind = getattr(transformers, f"{family}ForSequenceClassification")
    text = {**SIZES, **MORE[f"{family}Text"]}
    config = kind.config_class(text_config=text, vision_config=TOWER, num_labels=3)
    torch.manual_seed(7)
    model = kind(config).eval()
    model.save_pretrained(tmp_path)
    params = PoolingParams(task="classify", use_activation=False)
    with LLM(str(tmp_path), max_model_len=64, **OPTIONS) as llm:
        [found] = llm.classify([TokensPrompt(PROMPTS[1])], params)
    close(found.probs, logits(model, PROMPTS[1]))


def test_a_reward_is_made_by_two_matrices(tmp_path) -> None:
    """As the published code of Qwen2.5-Math-RM does, whose file does not count its one class."""
    config = transformers.Qwen2Config(**SIZES, architectures=["Qwen2ForRewardModel"])
    torch.manual_seed(7)
    model = transformers.Qwen2Model(config).eval()
    head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"score.{name}": tensor for name, tensor in head.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    config.save_pretrained(tmp_path)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        [found] = llm.classify([TokensPrompt(PROMPTS[1])])
    with torch.inference_mode():
        states = model(torch.tensor([PROMPTS[1]])).last_hidden_state[0]
        close(found.probs, head(states[-1]))


def test_rewards_of_internlm2_have_a_name_of_their_own(tmp_path) -> None:
    config = transformers.LlamaConfig(**SIZES, architectures=["InternLM2ForRewardModel"])
    torch.manual_seed(7)
    model, head = transformers.LlamaModel(config).eval(), nn.Linear(64, 1, bias=False)
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors = internlm2(tensors, layers=2, kv_heads=2) | {"v_head.weight": head.weight.detach()}
    save_file({k: t.contiguous() for k, t in tensors.items()}, tmp_path / "model.safetensors")
    config.save_pretrained(tmp_path)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        [found] = llm.classify([TokensPrompt(PROMPTS[1])])
    with torch.inference_mode():
        close(found.probs, head(model(torch.tensor([PROMPTS[1]])).last_hidden_state[0][-1]))


@pytest.mark.parametrize(
    ("values", "activation"),
    [
        ({"id2label": {0: "no", 1: "maybe", 2: "yes"}}, lambda x: x.softmax(0)),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, torch.sigmoid),
        ({"num_labels": 3, "problem_type": "regression"}, lambda x: x),
        ({"num_labels": 1}, torch.sigmoid),
    ],
)
def test_probabilities_are_as_the_file_says(tmp_path, values, activation) -> None:
    model = save(tmp_path, "Qwen2", **values)
    labels = list(model.config.id2label.values())
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert llm.engine.info.tasks == ("classify",)
        for prompt, output in zip(
            PROMPTS, llm.classify([TokensPrompt(p) for p in PROMPTS]), strict=True
        ):
            expected = activation(logits(model, prompt))
            close(output.probs, expected)
            assert output.label == labels[int(expected.argmax())]
            assert output.prompt_token_ids == prompt


def test_classes_and_vectors_share_steps(tmp_path) -> None:
    model = save(tmp_path, "Llama", num_labels=5)
    with LLM(str(tmp_path), pooling="mean", max_num_batched_tokens=16, **OPTIONS) as llm:
        llm.engine.add("a", TokensPrompt(PROMPTS[1]), PoolingParams(task="classify"))
        [vector] = llm.embed(TokensPrompt(PROMPTS[1]))
        [found] = llm.classify(TokensPrompt(PROMPTS[1]))
    close(found.probs, logits(model, PROMPTS[1]).softmax(0))
    with torch.inference_mode():
        hidden = model.model(torch.tensor([PROMPTS[1]])).last_hidden_state[0].mean(0)
    close(vector.embedding, hidden / hidden.norm())


def test_other_tasks_are_refused_with_the_remedy(tmp_path) -> None:
    save(tmp_path, "Llama")
    with LLM(str(tmp_path), **OPTIONS) as llm:
        with pytest.raises(RequestError, match="generates no text; its tasks: classify"):
            llm.generate(TokensPrompt([3]), SamplingParams(max_tokens=2))
        with pytest.raises(RequestError, match="--pooling last, mean, cls or max"):
            llm.embed(TokensPrompt([3]))
        with pytest.raises(RequestError, match="--pooling last, mean, cls or max"):
            llm.score("a", "b")  # two classes say nothing of pairs
        with pytest.raises(RequestError, match="of task 'classify'"):
            llm.classify(TokensPrompt([3]), PoolingParams())
    with (
        LLM("demo", platform="cpu", load_format="dummy") as llm,
        pytest.raises(RequestError, match="LlamaForSequenceClassification"),
    ):
        llm.classify("a")


def save_tokenizer(path) -> Tokenizer:
    """Save a tokenizer of words, which puts a token around texts and between those of pairs."""
    words = "[UNK] <s> </s> no yes what is a panda ? bear fox truck".split()
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A </s> $B", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.save(str(path / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    (path / "tokenizer_config.json").write_text(json.dumps(names))
    return tokenizer


WITH_TEXT = {**OPTIONS, "skip_tokenizer_init": False}
QUERY, DOCUMENTS = "what is a panda ?", ["a bear", "a fox </s> yes", "a truck"]


def test_pairs_are_scored_by_one_class(tmp_path) -> None:
    model = save(tmp_path, "Qwen3", num_labels=1)
    tokenizer = save_tokenizer(tmp_path)
    with LLM(str(tmp_path), **WITH_TEXT) as llm:
        found = llm.score(QUERY, DOCUMENTS)
        assert llm.score([QUERY] * 3, DOCUMENTS) == pytest.approx(found, abs=1e-6)
        for counts in ((2, 3), (1, 0)):
            with pytest.raises(RequestError, match="give one query, or as many"):
                llm.score([QUERY] * counts[0], DOCUMENTS[: counts[1]])
        with pytest.raises(RequestError, match="clearly more"):
            llm.score(QUERY, "a " * 10**6)
    for score, document in zip(found, DOCUMENTS, strict=True):
        text = document.replace("</s>", "< /s>")  # which is text, and ends no pair
        close(score, torch.sigmoid(logits(model, tokenizer.encode(QUERY, text).ids))[0])


def test_pairs_may_have_a_template(tmp_path) -> None:
    model = save(tmp_path, "Llama", num_labels=1, problem_type="regression")
    tokenizer = save_tokenizer(tmp_path)
    template = "{% for m in messages %}</s> {{ m.role }} is {{ m.content }} {% endfor %}?"
    (tmp_path / "pairs.jinja").write_text(template)
    with LLM(str(tmp_path), chat_template=str(tmp_path / "pairs.jinja"), **WITH_TEXT) as llm:
        [found] = llm.score(QUERY, "a fox")
    text = f"</s> query is {QUERY} </s> document is a fox ?"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    close(found, logits(model, ids)[0])


def save_generator(path, family, **values):
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **MORE.get(family, {}), **values})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    model.save_pretrained(path)
    return model


@pytest.mark.parametrize(("family", "tied"), [("Qwen3", False), ("Qwen3", True), ("Gemma", True)])
def test_words_of_the_output_matrix_are_classes(tmp_path, family, tied) -> None:
    """As Qwen3-Reranker answers, which is a model that generates."""
    model = save_generator(tmp_path, family, tie_word_embeddings=tied)
    tokenizer = save_tokenizer(tmp_path)
    overrides = {
        "architectures": [f"{family}ForSequenceClassification"],
        "classifier_from_token": ["no", "yes"],
        "is_original_qwen3_reranker": True,
    }
    with LLM(str(tmp_path), hf_overrides=overrides, **WITH_TEXT) as llm:
        found = llm.score(QUERY, DOCUMENTS[::2])
    for score, document in zip(found, DOCUMENTS[::2], strict=True):
        ids = tokenizer.encode(QUERY + document).ids  # nothing between both
        yes = logits(model, ids)[-1][[3, 4]].softmax(0)[1]
        close(score, yes)
    both = {**overrides, "is_original_qwen3_reranker": False, "classifier_from_token": [3, "yes"]}
    with LLM(str(tmp_path), hf_overrides=both, **WITH_TEXT) as llm:
        [output] = llm.classify(QUERY)
    close(output.probs, logits(model, tokenizer.encode(QUERY).ids)[-1][[3, 4]].softmax(0))
    assert output.label in ("3", "yes")


WORDS = {"architectures": ["Qwen3ForTokenClassification"], "classifier_from_token": ["yes"]}


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"classifier_from_token": ["maybe"]}, "'maybe', which the vocabulary does not have"),
        ({"classifier_from_token": [128]}, "128, which the vocabulary does not have"),
        ({"classifier_from_token": "yes"}, "must list tokens"),
        ({**WORDS, "step_token": "maybe"}, "step_token names 'maybe'"),
        ({**WORDS, "step_token": [3]}, "step_token must be a token"),
        ({"problem_type": "ranking"}, "problem_type 'ranking' is unknown"),
        ({"id2label": {"1": "a", "2": "b"}}, "id2label must name"),
        ({"num_labels": 10**6}, "there may be 65536"),
        ({"num_labels": 5}, "score.weight"),
        ({"sbert_ce_default_activation_function": "torch.nn.GELU"}, "served are Identity"),
    ],
)
def test_bad_classes_are_named(tmp_path, values, match) -> None:
    save(tmp_path, "Qwen3")
    save_tokenizer(tmp_path)
    with pytest.raises(CheckpointError, match=match):
        LLM(str(tmp_path), hf_overrides=values, **OPTIONS).close()
