"""Encoders' files, written by another package, give the vectors of the original checkpoint."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.plugins.models import test_nomic_bert as nomic
from tests.plugins.models.gguf.conftest import of_matrices, paired, tiny_model, vocabulary, write
from tests.plugins.models.gguf.hybrid_files import common
from tests.plugins.models.gguf.written import round_trip
from tests.plugins.models.plain import Drawn
from tests.plugins.models.test_bert import OPTIONS, PROMPTS, close, save
from tests.plugins.models.test_encoder import made
from tests.plugins.models.test_neobert import publish

from hotshoe import LLM, TokensPrompt
from hotshoe.errors import CheckpointError
from hotshoe_models.gguf.model import FORMAT

IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GEMMA = {"use_bidirectional_attention": True, "sliding_window": 8, "head_dim": 32}
GEMMA |= {"num_key_value_heads": 1, "query_pre_attn_scalar": 20, "num_hidden_layers": 3, **IDS}
GEMMA |= {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
MODERN = {"num_hidden_layers": 3, "local_attention": 8, **IDS}
MODERN |= {"cls_token_id": 1, "sep_token_id": 2}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}
#: By the name in files: the family in transformers, and its values.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", {}),
    "eurobert": ("EuroBert", IDS),
    "gemma-embedding": ("Gemma3Text", GEMMA),
    "modern-bert": ("ModernBert", MODERN),
    "nomic-bert": ("NomicBert", {"head_dim": 16, **ROPE}),
}
NUMBERS = {"mean": 1, "cls": 2, "last": 3}
#: What published checkpoints of Nomic call parts, by transformers' words.
NOMIC = {
    "layers.": "encoder.layers.",
    "embeddings.LayerNorm": "emb_ln",
    "post_attention_layernorm": "norm1",
    "post_mlp_layernorm": "norm2",
    "mlp.gate_proj": "mlp.fc12",
    "mlp.up_proj": "mlp.fc11",
    "mlp.down_proj": "mlp.fc2",
    "self_attn.o_proj": "attn.out_proj",
}


def keys_of(arch: str, config: Any, pooling: str) -> dict[str, Any]:
    rms = hasattr(config, "rms_norm_eps")
    eps = getattr(config, "layer_norm_eps", getattr(config, "norm_eps", 0.0))
    found = common(config) | {"pooling_type": NUMBERS[pooling], "attention.causal": False}
    if not rms:
        found.pop("attention.layer_norm_rms_epsilon", None)
        found["attention.layer_norm_epsilon"] = float(eps)
    rope = getattr(config, "rope_parameters", None) or {}
    if "full_attention" in rope:
        found["rope.freq_base"] = float(rope["full_attention"]["rope_theta"])
        found["rope.freq_base_swa"] = float(rope["sliding_attention"]["rope_theta"])
    if arch == "modern-bert":
        found["attention.sliding_window"] = config.local_attention
    if arch == "gemma-embedding":
        kinds = [kind == "sliding_attention" for kind in config.layer_types]
        found["attention.sliding_window"] = GEMMA["sliding_window"]  # as published
        found["attention.sliding_window_pattern"] = kinds
        found["attention.scale"] = config.query_pre_attn_scalar**-0.5
    return {f"{arch}.{key}": value for key, value in found.items() if value != 0}


def tensors_of(arch: str, model: Any) -> dict[str, np.ndarray]:
    config, found = model.config, {}
    known = gguf.MODEL_ARCH[arch.replace("-", "_").upper()]
    names = gguf.get_tensor_name_map(known, config.num_hidden_layers)
    state = {name: t.float().numpy() for name, t in model.state_dict().items()}
    for name, tensor in state.items():
        joined = arch == "nomic-bert" and ("k_proj" in name or "v_proj" in name)
        if "pooler" in name or joined:
            continue
        if arch == "gemma-embedding" and name.endswith("norm.weight"):
            tensor = tensor + 1
        if arch == "nomic-bert":
            if "q_proj" in name:
                tensor = np.concatenate([state[name.replace("q_proj", f"{p}_proj")] for p in "qkv"])
                name = name.replace("self_attn.q_proj", "attn.Wqkv")
            for theirs, published in NOMIC.items():
                name = name.replace(theirs, published)
        tried = (
            names.get_name(n, try_suffixes=(".weight", ".bias")) for n in (name, f"model.{name}")
        )
        found[next(filter(None, tried))] = np.ascontiguousarray(tensor)
    return found


#: With a test of its own.
JINA = "jina-bert-v2"


def t5(path: Path, kind: str = "relu") -> Any:
    return made(path, "T5Encoder", feed_forward_proj=kind)


def llama(path: Path) -> Any:
    """Save a model whose rows of q and k lie in pairs."""
    model, file = made(path, "EuroBert"), path / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if "q_proj" in name or "k_proj" in name:
            tensors[name] = torch.from_numpy(paired(tensor.numpy(), len(tensor) // 16))
    save_file(tensors, file)
    return model


#: By the name in files: what saves a checkpoint with published names and returns the model.
PUBLISHED: dict[str, Callable[[Path], Any]] = {
    "jina-bert-v3": lambda path: made(path, "JinaEmbeddingsV3"),
    "llama-embed": llama,
    "neo-bert": partial(publish, head=False),
    "t5encoder": t5,
    "t5encoder with gates": partial(t5, kind="gated-gelu"),
}
#: Keys beside those that all have.
T5_KEYS = {
    "attention.key_length": 24,
    "attention.value_length": 24,
    "attention.layer_norm_epsilon": 1e-6,
    "attention.relative_buckets_count": 32,
    "feed_forward_length": 96,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_vectors_of_published_encoders(name: str, tmp_path: Path) -> None:
    arch, _, _ = name.partition(" ")
    (tmp_path / "original").mkdir()
    model = PUBLISHED[name](tmp_path / "original")
    config = model.config
    known = gguf.MODEL_ARCH[arch.replace("-", "_").upper()]
    names = gguf.get_tensor_name_map(known, config.num_hidden_layers)
    tensors = {}
    for called, tensor in load_file(tmp_path / "original" / "model.safetensors").items():
        if "pooler" not in called and called != "encoder.embed_tokens.weight":
            tried = (called, called.removeprefix("roberta."), f"model.{called}")
            found = (names.get_name(n, try_suffixes=(".weight", ".bias")) for n in tried)
            tensors[next(filter(None, found))] = np.ascontiguousarray(tensor.numpy())
    keys = keys_of(arch, config, "mean")
    if arch == "t5encoder":
        keys |= {f"{arch}.{key}": value for key, value in T5_KEYS.items()}

    def kind(name: str) -> str:
        return "F32" if "attn_rel_b" in name else of_matrices("Q8_0")(name)

    path = write(tmp_path / "m.gguf", arch, keys | vocabulary(128), tensors, kind)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1 and weight.shape[-1] % 32 == 0:
                weight.copy_(round_trip(weight, "Q8_0"))
    with LLM(str(path), max_model_len=64, **OPTIONS) as llm:
        found = llm.embed([TokensPrompt(p) for p in PROMPTS[:2]])
    for prompt, output in zip(PROMPTS, found, strict=False):
        with torch.inference_mode():
            wanted = model(torch.tensor([prompt])).last_hidden_state[0].mean(0)
        close(output.embedding, wanted / wanted.norm(), 2e-5)


@pytest.mark.parametrize("arch", FAMILIES)
def test_vectors_of_the_checkpoint(arch: str, tmp_path: Path) -> None:
    family, values = FAMILIES[arch]
    model = save(tmp_path / "original", family, **values)
    pooling = "cls" if arch == "modern-bert" else "mean"
    keys = keys_of(arch, model.config, pooling) | vocabulary(128)
    path = write(tmp_path / "m.gguf", arch, keys, tensors_of(arch, model))
    with LLM(str(path), **OPTIONS) as llm:
        found = llm.embed([TokensPrompt(p) for p in PROMPTS[:2]])
    for prompt, output in zip(PROMPTS, found, strict=False):
        with torch.inference_mode():
            hidden = model(torch.tensor([prompt])).last_hidden_state[0]
        wanted = hidden[0] if pooling == "cls" else hidden.mean(0)
        close(output.embedding, wanted / wanted.norm(), 2e-5)


def test_vectors_of_nomic_with_experts(tmp_path: Path) -> None:
    """Converters leave the bias behind experts out."""
    drawn, arch = Drawn(), "nomic-bert-moe"
    nomic.nomic(drawn, torch.arange(5), bias=False)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.NOMIC_BERT_MOE, nomic.LAYERS)
    tensors = {}
    for called, tensor in drawn.items():
        stack = called.rpartition(".")[2]
        if stack in ("w1", "w2"):
            tensor = tensor.view(nomic.EXPERTS, nomic.WIDTH, nomic.SIZE)
            tensor = tensor.transpose(1, 2) if stack == "w2" else tensor
            called += ".weight"
        known = names.get_name(called, try_suffixes=(".weight", ".bias"))
        tensors[known] = np.ascontiguousarray(tensor.numpy())
    keys = {
        "context_length": 64,
        "embedding_length": nomic.SIZE,
        "block_count": nomic.LAYERS,
        "attention.head_count": nomic.HEADS,
        "attention.layer_norm_epsilon": nomic.EPS,
        "feed_forward_length": nomic.WIDTH,
        "rope.freq_base": nomic.THETA,
        "expert_count": nomic.EXPERTS,
        "expert_used_count": nomic.TOP_K,
        "moe_every_n_layers": 2,
        "pooling_type": 1,
    }
    keys = {f"{arch}.{key}": value for key, value in keys.items()} | vocabulary(nomic.WORDS)
    path = write(tmp_path / "m.gguf", arch, keys, tensors)
    with LLM(str(path), **OPTIONS) as llm:
        [output] = llm.embed([TokensPrompt(PROMPTS[1])])
    wanted = nomic.nomic(drawn, torch.tensor(PROMPTS[1]), bias=False).mean(0)
    close(output.embedding, wanted / wanted.norm(), 2e-5)


def test_vectors_of_jina_are_those_of_a_directory(tmp_path: Path) -> None:
    """Whose class is not one of transformers."""
    model = save(tmp_path, "Bert")
    tensors = tensors_of("bert", model)
    tensors = {n: t for n, t in tensors.items() if "position" not in n and "ffn_up.b" not in n}
    for name in [name for name in tensors if "ffn_up" in name]:
        tensors[name] = np.random.default_rng().normal(0, 0.3, (192, 64)).astype(np.float32)
    keys = keys_of(JINA, model.config, "mean")
    path = write(tmp_path / "m.gguf", JINA, keys | vocabulary(128), tensors)
    source = FORMAT.open(path).weights(torch.float32)
    found = {name: source.tensor(name).clone() for name in source.names()}
    assert {"encoder.layer.0.mlp.gated_layers.weight", "encoder.layer.1.mlp.wo.bias"} <= {*found}
    save_file(found, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    kinds = {"position_embedding_type": "alibi", "feed_forward_type": "geglu"}
    config |= {**kinds, "architectures": ["JinaBertModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    vectors = []
    for place, options in ((tmp_path, {"pooling": "mean"}), (path, {})):
        with LLM(str(place), **options, **OPTIONS) as llm:
            vectors.append(llm.embed(TokensPrompt(PROMPTS[1]))[0].embedding)
    np.testing.assert_allclose(*vectors, atol=1e-6)


def test_decoders_may_say_how_vectors_are_made(tmp_path: Path) -> None:
    values, tensors = tiny_model()
    path = write(tmp_path / "m.gguf", "llama", values | {"llama.pooling_type": 3}, tensors)
    with LLM(str(path), max_model_len=64, kv_cache_memory_bytes=2**22, **OPTIONS) as llm:
        [output] = llm.embed(TokensPrompt([5, 9, 3]))
    assert abs(np.linalg.norm(output.embedding) - 1) < 1e-5


@pytest.mark.parametrize(
    ("number", "head", "said"),
    [(4, "", "pooling_type is 4, but read are 1"), (1, "cls", "not read with cls.weight")],
)
def test_scores_of_pairs_are_refused(tmp_path: Path, number: int, head: str, said: str) -> None:
    values, tensors = tiny_model()
    keys = {key.replace("llama.", "bert."): value for key, value in values.items()}
    tensors |= {f"{head}.weight": tensors["output_norm.weight"]} if head else {}
    path = write(tmp_path / "m.gguf", "bert", keys | {"bert.pooling_type": number}, tensors)
    with pytest.raises(CheckpointError, match=said):
        LLM(str(path), **OPTIONS)
