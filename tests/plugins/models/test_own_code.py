"""Further families with code of their own: checkpoints of transformers' nearest family, written as
theirs, with slopes by distance where they have them."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.plugins.models.conftest import VOCAB, Checkpoint, Variant, save_tiny
from tests.plugins.models.test_bert import OPTIONS, PROMPTS, close, states
from tests.plugins.models.test_encoder import made
from tests.plugins.models.test_published import (
    DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    LENGTH,
    NAMES,
    SIZE,
    USUAL,
    Tensors,
    compare,
    renamed,
    stacked,
)

from hotshoe import LLM, PoolingParams, TokensPrompt
from hotshoe.errors import CheckpointError
from hotshoe_models import own_code

BASE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
#: Factor on Jais' embeddings, and on its logits.
FACTOR = 3.0


class Sloped(torch.nn.Module):
    """A model of transformers that rotates nothing, and whose scores fall with the distance."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, use_cache: bool) -> Any:
        places = torch.arange(ids.shape[1])
        distance = (places[:, None] - places).float()
        slopes = torch.tensor([2.0 ** (-8 * (i + 1) / HEADS) for i in range(HEADS)])
        bias = (-slopes[:, None, None] * distance).masked_fill(distance < 0, -torch.inf)
        still = torch.zeros_like(ids)
        return self.model(ids, attention_mask=bias[None], position_ids=still, use_cache=use_cache)


class Case(NamedTuple):
    """transformers' family and its values, the published config.json, how tensors change, which of
    the model's are zero, and whether there are slopes."""

    family: str
    values: dict[str, Any]
    config: dict[str, Any]
    change: Callable[[Tensors], Tensors] = dict
    zero: str = "$^"
    sloped: bool = False


def baichuan(tensors: Tensors) -> Tensors:
    return stacked(tensors, "self_attn.W_pack")


def unnormed(tensors: Tensors) -> Tensors:
    """The matrix whose rows the published code norms."""
    tensors["lm_head.weight"] *= torch.rand(VOCAB, 1) + 0.5
    return baichuan(tensors)


def telechat(tensors: Tensors) -> Tensors:
    found = {}
    for name, tensor in tensors.items():
        if re.search(r"(q|k|v|gate|up)_proj\.bias", name):
            continue
        if "k_proj" in name:
            pairs = zip(
                tensor.chunk(KV_HEADS),
                tensors[name.replace("k_p", "v_p")].chunk(KV_HEADS),
                strict=True,
            )
            tensor = torch.cat([torch.cat(pair) for pair in pairs])
        if "v_proj" not in name:
            found[name] = tensor
    return renamed(
        found,
        ("model.embed_tokens", "transformer.word_embeddings"),
        ("model.norm", "transformer.ln_f"),
        ("model.layers", "transformer.h"),
        ("self_attn.q_proj", "self_attention.query"),
        ("self_attn.k_proj", "self_attention.key_value"),
        ("self_attn.o_proj", "self_attention.dense"),
    )


def jais(tensors: Tensors) -> Tensors:
    """Matrices are transposed, and all have biases; q is larger, as scores are divided by more."""
    tensors["model.embed_tokens.weight"] /= FACTOR
    for name in [name for name in tensors if "q_proj" in name]:
        tensors[name] *= DIM**0.5
    found = {}
    for name, tensor in stacked(tensors, "attn.c_attn").items():
        found[name] = tensor.T if tensor.dim() == 2 and "layers" in name else tensor
        if re.search(r"(o|gate|up|down)_proj", name):
            found[name.replace("weight", "bias")] = torch.zeros(len(tensor))
    mlp = ("mlp.gate_proj", "mlp.c_fc2"), ("mlp.up_proj", "mlp.c_fc"), ("mlp.down", "mlp.c")
    found["transformer.relative_pe.slopes"] = torch.ones(HEADS)  # known without it
    return renamed(found, *NAMES, ("self_attn.o_proj", "attn.c_proj"), *mlp)


MHA = {"num_key_value_heads": HEADS}
BAICHUAN = {key: value for key, value in USUAL.items() if key != "num_key_value_heads"}
STABLE = {"layer_norm_eps": 1e-5, "num_hidden_layers": LAYERS}
CASES = {
    "AquilaModel": Case("Llama", {}, USUAL),
    "BaiChuanForCausalLM": Case("Llama", MHA, BAICHUAN, baichuan),
    "BaichuanForCausalLM": Case(
        "Llama",
        MHA,
        {key: value for key, value in BAICHUAN.items() if not key.startswith("max_")}
        | {"model_max_length": LENGTH},
        unnormed,
        sloped=True,
    ),
    "JAISLMHeadModel": Case(
        "StableLm",
        {**MHA, **STABLE, "use_qkv_bias": True, "tie_word_embeddings": True},
        {
            "vocab_size": VOCAB,
            "n_embd": SIZE,
            "n_layer": LAYERS,
            "n_head": HEADS,
            "n_inner": 96,
            "n_positions": LENGTH,
            "activation_function": "swiglu",
            "position_embedding_type": "alibi",
            "mup_embeddings_scale": FACTOR,
            "mup_output_alpha": FACTOR / 2,
            "mup_width_scale": 2.0,
            "mup_scale_qk_dot_by_d": True,
        },
        jais,
        sloped=True,
    ),
    "PanguEmbeddedForCausalLM": Case("Llama", {"attention_bias": True}, {**USUAL, "bias": True}),
    "RWForCausalLM": Case(
        "Falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_hidden_layers": LAYERS},
        {
            "model_type": "RefinedWeb",
            "vocab_size": VOCAB,
            "hidden_size": SIZE,
            "n_layer": LAYERS,
            "n_head": HEADS,
            "n_head_kv": 2,
        },
    ),
    "StableLMEpochForCausalLM": Case(
        "StableLm",
        {**STABLE, "partial_rotary_factor": 0.5, "use_qkv_bias": True},
        {**USUAL, "norm_eps": 1e-5, "rope_pct": 0.5, "use_qkv_bias": True},
    ),
    "TeleChat2ForCausalLM": Case(
        "Llama",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {"rope_theta": 10_000.0 * 3 ** (DIM / (DIM - 2))},
        },
        {
            "vocab_size": VOCAB,
            "hidden_size": SIZE,
            "n_layer": LAYERS,
            "n_head": HEADS,
            "num_key_value_heads": KV_HEADS,
            "ffn_hidden_size": 96,
            "layer_norm_epsilon": 1e-6,
            "base_seqlen": LENGTH // 2,
            "training_seqlen": LENGTH,
            "tie_word_embeddings": False,
        },
        telechat,
        zero=r"(q|k|v|gate|up)_proj\.bias",
    ),
    "TeleFLMForCausalLM": Case(
        "Granite",
        {
            "embedding_multiplier": 2.0,
            "residual_multiplier": 1.0,
            "attention_multiplier": DIM**-0.5,
            "logits_scaling": 4.0,
        },
        {
            **USUAL,
            "use_mup": True,
            "input_mult": 2.0,
            "output_mult": 0.5,
            "mup_scale_factor": 2.0,
            "tie_word_embeddings": False,
        },
    ),
}


def written(name: str, case: Case, path: Path) -> Checkpoint:
    """Write a family's checkpoint, and return what computes the same."""
    source = path.parent / "source"
    source.mkdir()
    own = {"max_position_embeddings": LENGTH, "intermediate_size": 96, **case.values}
    made = save_tiny(Variant(name, case.family, own), source, random.getrandbits(31))
    tensors = {key: tensor.clone() for key, tensor in made.model.state_dict().items()}
    if made.model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    with torch.no_grad():
        for key, parameter in made.model.named_parameters():
            if re.search(case.zero, key):
                parameter.zero_()
    path.mkdir()
    tensors = {key: tensor.contiguous() for key, tensor in case.change(tensors).items()}
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({**case.config, "architectures": [name]}))
    return Checkpoint(path, Sloped(made.model) if case.sloped else made.model)


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_same_model(
    name: str, stepper_class, tmp_path: Path, monkeypatch
) -> None:
    normed = name == "BaichuanForCausalLM"
    monkeypatch.setattr(own_code, "NORMED_WORDS", VOCAB if normed else 0)
    made = written(name, CASES[name], tmp_path / "target")
    if normed:
        matrix = made.model.model.lm_head.weight
        with torch.no_grad():
            matrix.copy_(torch.nn.functional.normalize(matrix))
    compare(made, tmp_path / "target", stepper_class)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("TeleChat2ForCausalLM", {"training_seqlen": 8}, "up to it; lower --max-model-len"),
        ("TeleChat2ForCausalLM", {"embed_layernorm": True}, "embed_layernorm"),
        ("TeleChat2ForCausalLM", {"n_head": SIZE // 2}, "heads of 4 channels or more"),
        ("JAISLMHeadModel", {"activation_function": "gelu"}, "served with swiglu alone"),
        ("JAISLMHeadModel", {"position_embedding_type": "learned"}, "served with alibi alone"),
    ],
)
def test_what_changes_the_shape_is_named(
    name: str, values: dict[str, Any], message: str, stepper_class, tmp_path: Path
) -> None:
    config = {**CASES[name].config, **values, "architectures": [name]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        stepper_class(tmp_path, LENGTH)


def test_llama_may_be_an_encoder(tmp_path: Path) -> None:
    """Of EuroBERT's shape; files name it by a class of their own."""
    model = made(tmp_path, "EuroBert", "Model")
    path = tmp_path / "config.json"
    values = json.loads(path.read_text()) | {
        "architectures": ["LlamaBidirectionalModel"],
        "model_type": "llama_bidirec",
    }
    path.write_text(json.dumps(values))
    with LLM(str(tmp_path), pooling="mean", **OPTIONS) as llm:
        [output] = llm.embed(TokensPrompt(PROMPTS[1]), PoolingParams(normalize=False))
    close(output.embedding, states(model, PROMPTS[1]).mean(0), 1e-4)


@pytest.mark.parametrize("pooling", ["avg", "last"])
def test_it_may_rank(pooling: str, tmp_path: Path) -> None:
    """By one class of the states' mean, or of the last one, divided by a temperature."""
    model = made(tmp_path, "EuroBert", "Model")
    path, weights = tmp_path / "config.json", torch.randn(1, model.config.hidden_size)
    tensors = load_file(tmp_path / "model.safetensors")
    bare = {f"model.{name}": tensor for name, tensor in tensors.items()}
    save_file(bare | {"score.weight": weights}, tmp_path / "model.safetensors")
    values = json.loads(path.read_text()) | {
        "architectures": ["LlamaBidirectionalForSequenceClassification"],
        "model_type": "llama_bidirec",
        "pooling": pooling,
        "temperature": 0.2,
        "id2label": {"0": "LABEL_0"},
    }
    path.write_text(json.dumps(values))
    with LLM(str(tmp_path), **OPTIONS) as llm:
        params = PoolingParams(task="classify", use_activation=False)
        [output] = llm.classify(TokensPrompt(PROMPTS[1]), params)
    state = states(model, PROMPTS[1])
    pooled = state.mean(0) if pooling == "avg" else state[-1]
    close(output.probs, weights @ pooled / 0.2, 1e-4)


def test_a_pooling_that_is_not_known_is_named(stepper_class, tmp_path: Path) -> None:
    own = {"architectures": ["LlamaBidirectionalForSequenceClassification"], "pooling": "cls__left"}
    (tmp_path / "config.json").write_text(json.dumps(USUAL | own))
    with pytest.raises(CheckpointError, match=r"pooling is 'cls__left'.* avg, cls, last"):
        stepper_class(tmp_path, LENGTH)
