"""Jina's BERT against transformers' BERT with the attention and the MLP of the published code."""

import json

import pytest
import torch
from safetensors.torch import save_file
from tests.plugins.models.test_bert import OPTIONS, PROMPTS, close, save
from torch import nn

from hotshoe import LLM, PoolingParams, TokensPrompt
from hotshoe.errors import CheckpointError
from hotshoe.slots import Alibi

KEYS = {"position_embedding_type": "alibi", "feed_forward_type": "geglu"}


class Gated(nn.Module):
    """The MLP of a layer, with the norm behind it."""

    def __init__(self, layer) -> None:
        super().__init__()
        self.gated_layers = nn.Linear(64, 2 * 96, bias=False)
        self.wo, self.layernorm = layer.output.dense, layer.output.LayerNorm

    def forward(self, inner, hidden):
        gate, up = self.gated_layers(hidden).split(96, -1)
        return self.layernorm(self.wo(nn.functional.gelu(gate) * up) + hidden)


@pytest.mark.parametrize("heads", [4, 2])
def test_vectors_are_those_of_the_published_code(tmp_path, heads) -> None:
    values = {"attn_implementation": "eager", "num_attention_heads": heads, "num_hidden_layers": 1}
    model = save(tmp_path, **values)
    with torch.no_grad():
        model.embeddings.position_embeddings.weight.zero_()
    for layer in model.encoder.layer:
        layer.output = Gated(layer)
    tensors = {
        name.replace(".output.", ".mlp.") if ".attention." not in name else name: tensor
        for name, tensor in model.state_dict().items()
        if "position" not in name and ".intermediate." not in name
    }
    save_file({f"bert.{name}": t.contiguous() for name, t in tensors.items()}, tmp_path / "x")
    (tmp_path / "x").rename(tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config |= KEYS | {"architectures": ["JinaBertForMaskedLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with LLM(str(tmp_path), pooling="mean", **OPTIONS) as llm:
        found = llm.embed([TokensPrompt(p) for p in PROMPTS], PoolingParams(normalize=False))
    slopes = torch.tensor(Alibi(heads).slopes(heads))
    for prompt, output in zip(PROMPTS, found, strict=True):
        at = torch.arange(len(prompt))
        mask = -(at[:, None] - at).abs() * slopes[:, None, None]
        with torch.inference_mode():
            hidden = model(torch.tensor([prompt]), attention_mask=mask[None]).last_hidden_state
        close(output.embedding, hidden[0].mean(0), 1e-4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"position_embedding_type": "absolute"}, "is served with alibi"),
        ({"feed_forward_type": "original"}, "knows only geglu, reglu"),
    ],
)
def test_refusals(tmp_path, values, message) -> None:
    save(tmp_path)
    wanted = KEYS | values | {"architectures": ["JinaBertModel"]}
    with pytest.raises(CheckpointError, match=message):
        LLM(str(tmp_path), hf_overrides=wanted, **OPTIONS)
