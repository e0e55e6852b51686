"""GTE's files as published: class `NewModel`, stacked matrices, stretched rotations."""

import json

import pytest
import torch
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


@pytest.mark.parametrize(
    ("values", "message"),
    [
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
