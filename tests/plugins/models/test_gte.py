"""GTE's files as published: class `NewModel`, stacked matrices, stretched rotations."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.plugins.models.test_bert import OPTIONS, PROMPTS, close, states
from tests.plugins.models.test_encoder import ATOL, logits, made

from hotshoe import LLM, PoolingParams, TokensPrompt
from hotshoe.errors import CheckpointError
from hotshoe.models import ModelConfig
from hotshoe_models.gte import _rotation


def publish(path, use="Model", **values) -> None:
    """Let a checkpoint of transformers, which has the published names, be one of GTE's own code."""
    config = json.loads((path / "config.json").read_text())
    theta = config.pop("rope_parameters")["rope_theta"]
    config |= {"architectures": [f"New{use}"], "model_type": "new", "rope_theta": theta}
    (path / "config.json").write_text(json.dumps(config | values))


def test_vectors_of_published_files(tmp_path) -> None:
    model = made(tmp_path, "Gte")
    publish(tmp_path, pack_qkv=True, rope_scaling=None)
    with LLM(str(tmp_path), pooling="cls", **OPTIONS) as llm:
        found = llm.embed([TokensPrompt(p) for p in PROMPTS], PoolingParams(normalize=False))
    for prompt, output in zip(PROMPTS, found, strict=True):
        close(output.embedding, states(model, prompt)[0], ATOL)


def test_classes_of_published_files(tmp_path) -> None:
    model = made(tmp_path, "Gte", "ForSequenceClassification", num_labels=1)
    publish(tmp_path, "ForSequenceClassification")
    with LLM(str(tmp_path), **OPTIONS) as llm:
        [output] = llm.classify(TokensPrompt(PROMPTS[1]))
    close(output.probs, logits(model, PROMPTS[1]).sigmoid(), ATOL)


def test_a_stretched_rotation(tmp_path) -> None:
    class Context:
        max_model_len = 64

    values = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 64}
    config = ModelConfig(tmp_path, "NewModel", values | {"rope_theta": 500.0}, None, 64, ())
    found = torch.tensor(_rotation(config, Context, 1.0, 8.0).inv_freq)
    pairs = torch.arange(8)
    torch.testing.assert_close(found, (500.0 * 8) ** (-pairs / 8) / 8 ** (1 / 8))


TASKS = ["retrieval.query", "separation"]


def publish_jina(path):
    """Save Jina 3 as published, with adapters beside each matrix; return the matrices of a task."""
    tensors, found = load_file(path / "model.safetensors"), {}
    adapted = {}
    for name, tensor in tensors.items():
        if tensor.dim() < 2:
            found[name] = adapted[name] = tensor
            continue
        prefix = f"{name.removesuffix('.weight')}.parametrizations.weight"
        rows, columns = tensor.shape
        table = "_embeddings" in name
        a = torch.randn(len(TASKS), *((rows, 4) if table else (4, columns)))
        b = torch.randn(len(TASKS), *((4, columns) if table else (rows, 4)))
        found[f"{prefix}.original"] = tensor
        found[f"{prefix}.0.lora_A"], found[f"{prefix}.0.lora_B"] = 0.1 * a, b
        change = a[1] @ b[1] if table else b[1] @ a[1]
        adapted[name] = tensor + 0.1 * 2.0 / 4 * change
    save_file(found, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    theta = config.pop("rope_parameters")["rope_theta"]
    config |= {
        "architectures": ["XLMRobertaModel"],
        "position_embedding_type": "rotary",
        "rotary_emb_base": theta,
        "max_position_embeddings": config["max_position_embeddings"] + 2,
        "lora_adaptations": TASKS,
        "lora_alpha": 2,
        "lora_rank": 4,
    }
    (path / "config.json").write_text(json.dumps(config))
    return adapted


@pytest.mark.parametrize("task", [None, "separation"])
def test_an_adapter_of_jina_is_chosen_at_start(tmp_path, task) -> None:
    model = made(tmp_path, "JinaEmbeddingsV3")
    adapted = publish_jina(tmp_path)
    if task is not None:
        plain = tmp_path / "adapted"
        plain.mkdir()
        save_file(adapted, plain / "model.safetensors")
        model.config.save_pretrained(plain)
        model = type(model).from_pretrained(plain).eval()
    with LLM(str(tmp_path), pooling="mean", hf_overrides={"lora_task": task}, **OPTIONS) as llm:
        found = llm.embed([TokensPrompt(p) for p in PROMPTS], PoolingParams(normalize=False))
    for prompt, output in zip(PROMPTS, found, strict=True):
        with torch.inference_mode():
            close(output.embedding, states(model, prompt).mean(0), ATOL)


def test_an_unknown_task_of_jina_is_named(tmp_path) -> None:
    made(tmp_path, "JinaEmbeddingsV3")
    publish_jina(tmp_path)
    with pytest.raises(CheckpointError, match=r"lora_task is 'rhyme'.*retrieval.query, separation"):
        LLM(str(tmp_path), pooling="mean", hf_overrides={"lora_task": "rhyme"}, **OPTIONS).close()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"head_dim": 5}, "head_dim is 5"),
        ({"pack_qkv": False}, "is served with True"),
        ({"logn_attention_scale": True}, "is served with False"),
        ({"layer_norm_type": "rms_norm"}, "is served with 'layer_norm'"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, 'is served with type "ntk"'),
        ({"rope_scaling": {"type": "ntk", "factor": 0}}, "needs a positive number"),
    ],
)
def test_refusals(tmp_path, values, message) -> None:
    made(tmp_path, "Gte")
    publish(tmp_path, **values)
    with pytest.raises(CheckpointError, match=message):
        LLM(str(tmp_path), **OPTIONS)
