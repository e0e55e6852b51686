"""Drafts of published layers that predict a further token, against transformers' own layers.

The last layer of a model of transformers is written where the family publishes such a layer, with a
matrix that joins and norms around it. Plain code joins; transformers' layer computes.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.plugins.models.conftest import (
    EXPERTS,
    GROUPS,
    HERE,
    INDEX,
    LATENT,
    MIMO,
    Variant,
    save_tiny,
)
from tests.plugins.models.test_fused_qkv import quantized, restored
from torch import Tensor, nn

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.speculation.drafting import Heads

LAYERS, SIZE, VOCAB = 3, 64, 256
SPARSE = {**LATENT, **EXPERTS, **GROUPS, "num_hidden_layers": LAYERS + 1, "n_shared_experts": 1}
#: What a layer writes into the residual.
OUT = ("o_proj.weight", "down_proj.weight", "down_proj")
OPTIONS = {
    "platform": HERE,
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_model_len": 64,
    "max_num_batched_tokens": 12,
    "block_size": 16,
    "kv_cache_memory_bytes": 1 << 21,
}
PARAMS = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@dataclass(frozen=True)
class Family:
    """Where a family publishes the layer.

    Attributes:
        values: Of a model whose last layer is like it.
        config: What the published file says otherwise.
        prefix, norm: Of the layer, and of the norm behind it.
        renames: Of its tensors.
        passes_normed: The next draft reads the normed state.
    """

    values: dict[str, object]
    config: dict[str, object]
    prefix: str = f"model.layers.{LAYERS}."
    norm: str = "shared_head.norm"
    renames: tuple[tuple[str, str], ...] = ()
    passes_normed: bool = False


FAMILIES = {
    "DeepseekV32": Family(
        {**SPARSE, **INDEX, "first_k_dense_replace": 1},
        {"layer_types": None, "mlp_layer_types": None, "num_nextn_predict_layers": 1},
    ),
    "GlmMoeDsa": Family(
        {
            **SPARSE,
            **INDEX,
            "n_group": 1,
            "topk_group": 1,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "indexer_types": ["full", "full", "shared", "full"],
        },
        {
            "layer_types": None,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "indexer_types": ["full", "full", "shared"],
            "num_nextn_predict_layers": 1,
        },
    ),
    "MiMoV2Flash": Family(
        {
            **MIMO,
            "num_hidden_layers": LAYERS + 1,
            "sliding_window": 9,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
        },
        {
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
        },
        "model.mtp.layers.0.",
        "final_layernorm",
        (("post_attention_layernorm", "pre_mlp_layernorm"),),
        passes_normed=True,
    ),
}


class Published:
    """A model of three layers, and a fourth that predicts a further token.

    Each token almost says the next one, as the layer knows, so that drafts are often right.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.family = family = FAMILIES[name]
        whole = path / "whole"
        whole.mkdir()
        made = save_tiny(Variant(name, name, family.values), whole, random.getrandbits(31))
        self.model, self.lm_head = made.model.model, made.model.lm_head
        self.eps = made.model.config.rms_norm_eps
        tensors = load_file(whole / "model.safetensors")
        vectors = 8 * nn.functional.normalize(torch.randn(VOCAB, SIZE))
        changed = {"model.embed_tokens.weight": vectors}
        changed["lm_head.weight"] = torch.empty_like(vectors)
        changed["lm_head.weight"][torch.randperm(VOCAB)] = vectors
        changed |= {key: 0.25 * t for key, t in tensors.items() if key.endswith(OUT)}
        with torch.no_grad():
            self.model.embed_tokens.weight.copy_(vectors)
            self.lm_head.weight.copy_(changed["lm_head.weight"])
            for key, tensor in self.model.named_parameters():
                if key.endswith(OUT):
                    tensor.mul_(0.25)
        self.own = {key: 1 + 0.2 * torch.randn(SIZE) for key in ("enorm", "hnorm", family.norm)}
        self.own["eh_proj"] = torch.cat([torch.eye(SIZE), 0.1 * torch.randn(SIZE, SIZE)], 1)
        self.path = path / "published"
        self.path.mkdir()
        tensors = {self._published(key): t for key, t in (tensors | changed).items()}
        tensors |= {f"{family.prefix}{key}.weight": t for key, t in self.own.items()}
        save_file(tensors, self.path / "model.safetensors")
        config = json.loads((whole / "config.json").read_text())
        config |= {"num_hidden_layers": LAYERS, **family.config}
        (self.path / "config.json").write_text(json.dumps(config))

    def _published(self, key: str) -> str:
        last = f"model.layers.{LAYERS}."
        if not key.startswith(last):
            return key
        for ours, theirs in self.family.renames:
            key = key.replace(ours, theirs)
        return self.family.prefix + key.removeprefix(last)

    def _before(self, ids: list[int]) -> tuple[Tensor, dict[str, object]]:
        """Return the states in front of the fourth layer, and what else it takes."""
        found = []
        hook = self.model.layers[LAYERS].register_forward_pre_hook(
            lambda module, args, kwargs: found.append((args, kwargs)), with_kwargs=True
        )
        self.model(torch.tensor([ids]), use_cache=False)
        hook.remove()
        [(args, kwargs)] = found
        kwargs = dict(kwargs)
        states = args[0] if args else kwargs.pop("hidden_states")
        return states, kwargs

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.own[name]

    @torch.no_grad()
    def gaps(self, ids: list[int], drafts: list[int]) -> list[float]:
        """Return by how far each draft's logit is below the largest; they follow each other."""
        found, read = list[float](), list(ids[1:])
        states = self.model.norm(self._before(ids[:-1])[0])
        for draft in drafts:
            _, others = self._before([*ids, 3, 3, 3][: len(read)])
            embedded = self.model.embed_tokens(torch.tensor([read]))
            joined = torch.cat([self._norm(embedded, "enorm"), self._norm(states, "hnorm")], -1)
            out = self.model.layers[LAYERS](joined @ self.own["eh_proj"].T, **others)
            out = out[0] if isinstance(out, tuple) else out
            normed = self._norm(out, self.family.norm)
            logits = self.lm_head(normed)[0, -1]
            found.append(float((logits.max() - logits[draft]) / logits.abs().max()))
            passed = normed if self.family.passes_normed else out
            states, read = torch.cat((states, passed[:, -1:]), 1), [*read, draft]
        return found


@pytest.fixture(scope="module", params=FAMILIES)
def published(request, tmp_path_factory):
    return Published(request.param, tmp_path_factory.mktemp("further"))


def draw(count: int) -> list[int]:
    return [random.randrange(3, VOCAB) for _ in range(count)]


def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[int]]]:
    """Return a list that gets the known tokens and the drafts of all requests from now on."""
    seen: list[tuple[list[int], list[int]]] = []

    def spy(self, wanted):
        seen.extend((list(one.request.token_ids), list(one.made)) for one in wanted)
        return [list(one.made[: one.limit]) for one in wanted]

    monkeypatch.setattr(Heads, "propose", spy)
    return seen


def test_drafts_are_those_of_transformers_layer(published, monkeypatch):
    """Behind prompts in parts, accepted and refused drafts, and answers stay as they were."""
    seen = watched(monkeypatch)
    prompts = [TokensPrompt(draw(n)) for n in (2, 17, 30)]
    with LLM(str(published.path), **OPTIONS) as llm:
        plain = [r.outputs[0].token_ids for r in llm.generate(prompts, PARAMS)]
    drafting = {"method": "mtp", "num_speculative_tokens": 2, "adaptive": False}
    with LLM(str(published.path), speculative_config=drafting, **OPTIONS) as llm:
        assert [r.outputs[0].token_ids for r in llm.generate(prompts, PARAMS)] == plain
        stats = llm.stats()
    assert stats.num_accepted_tokens > 0.3 * stats.num_draft_tokens  # by chance 1 of 256
    assert stats.num_accepted_at[1] > 3
    seen = [(ids, made) for ids, made in seen if made]
    assert len(seen) > 15 and any(len(made) == 2 for _, made in seen)
    gaps = [gap for ids, made in seen[::2] for gap in published.gaps(ids, made)]
    assert sum(gap <= 1e-4 for gap in gaps) >= 0.9 * len(gaps), gaps  # choices may be near ties


@pytest.mark.parametrize("published", ["MiMoV2Flash"], indirect=True)
def test_fused_and_quantized_rows_are_those_of_the_layer(published, tmp_path, monkeypatch):
    """As MiMo V2.5 is published: lists of what is not quantized name the layer otherwise."""
    config = json.loads((published.path / "config.json").read_text())
    shares, block = config["num_key_value_heads"], (20, 24)
    parted = load_file(published.path / "model.safetensors")
    fused = dict(parted)
    prefixes = [*(f"model.layers.{i}." for i in range(LAYERS)), published.family.prefix]
    for prefix in prefixes:
        names = [f"{prefix}self_attn.{part}_proj.weight" for part in "qkv"]
        each = zip(*(fused.pop(name).chunk(shares) for name in names), strict=True)
        numbers, scales, back = [], [], []
        for parts in each:
            number, scale = quantized(torch.cat(parts), *block)
            numbers.append(number)
            scales.append(scale)
            back.append(restored(number, scale, *block).split([len(part) for part in parts]))
        fused[f"{prefix}self_attn.qkv_proj.weight"] = torch.cat(numbers)
        fused[f"{prefix}self_attn.qkv_proj.weight_scale_inv"] = torch.cat(scales)
        parted |= {
            name: torch.cat(p) for name, p in zip(names, zip(*back, strict=True), strict=True)
        }
    kept = [f"model.layers.{i}.self_attn.o_proj" for i in range(LAYERS)]
    own = {
        "architectures": ["MiMoV2ForCausalLM"],
        "attention_projection_layout": "fused_qkv",
        "quantization_config": {
            "quant_method": "fp8",
            "weight_block_size": list(block),
            "ignored_layers": [*kept, "model.decoder.self_attn.o_proj", "mlp", "lm_head"],
        },
    }
    prompts, found = [TokensPrompt(draw(n)) for n in (3, 20)], []
    for name, tensors, changes in (("parted", parted, {}), ("fused", fused, own)):
        path = tmp_path / name
        path.mkdir()
        save_file({k: t.contiguous() for k, t in tensors.items()}, path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(config | changes))
        seen = watched(monkeypatch)
        drafting = {"method": "mtp", "num_speculative_tokens": 2, "adaptive": False}
        with LLM(str(path), speculative_config=drafting, **OPTIONS) as llm:
            tokens = [r.outputs[0].token_ids for r in llm.generate(prompts, PARAMS)]
        found.append((tokens, seen))
    assert found[0] == found[1] and len(found[0][1]) > 10


def test_without_drafts_it_is_not_read(published):
    with LLM(str(published.path), **OPTIONS) as llm:
        llm.generate(TokensPrompt(draw(3)), PARAMS)


def test_what_a_file_lacks_is_named(published, tmp_path):
    tensors = load_file(published.path / "model.safetensors")
    del tensors[f"{published.family.prefix}eh_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((published.path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    drafting = {"method": "mtp", "num_speculative_tokens": 1, "adaptive": False}
    with pytest.raises(CheckpointError, match=r"lacks .*eh_proj"):
        LLM(str(tmp_path), speculative_config=drafting, **OPTIONS)
    config["num_nextn_predict_layers"] = 0
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"ForCausalLM in .* has none"):
        LLM(str(tmp_path), speculative_config=drafting, **OPTIONS)
