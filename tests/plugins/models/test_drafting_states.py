"""Qwen3-Next and Qwen3.5 with the layer that predicts further tokens, beside their states.

The layer is a copy of one that attends, which transformers computes as well.
"""

import copy
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tests.e2e import eagle
from torch import Tensor, nn

from hotshoe import LLM, EngineConfig, SamplingParams, TokensPrompt
from hotshoe.engine.core.draft_model import DraftModel
from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.speculation.drafting import Heads

VOCAB, SIZE, ATTENDING = 256, 64, 1
GREEDY = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
#: What a layer writes into the residual.
OUT = ("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")
Weights = dict[str, Tensor]


@dataclass
class Drafting:
    """A checkpoint with such a layer, and all of its tensors."""

    path: Path
    weights: Weights


@pytest.fixture
def make(variants, checkpoints, tmp_path):
    """Write a checkpoint in which a token says much of the next one, as the layer knows."""

    def write(name: str, strange: float, without: str = "") -> Drafting:
        source = checkpoints.get(variants[name]).path
        path = tmp_path / f"{name}-{strange}"
        shutil.copytree(source, path)
        found: Weights = {}
        for file in path.glob("*.safetensors"):
            with safe_open(file, "pt") as opened:
                found |= {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
            file.unlink()
        (path / "model.safetensors.index.json").unlink(missing_ok=True)
        found |= {key: t * strange for key, t in found.items() if key.endswith(OUT)}
        layer = f"model.layers.{ATTENDING}."
        own = {key: t.clone() for key, t in found.items() if key.startswith(layer)}
        found |= {f"mtp.layers.0.{key.removeprefix(layer)}": t for key, t in own.items()}
        vectors = 8 * nn.functional.normalize(torch.randn(VOCAB, SIZE))
        found["model.embed_tokens.weight"] = vectors
        found["lm_head.weight"] = torch.empty_like(vectors)
        found["lm_head.weight"][torch.randperm(VOCAB)] = vectors
        for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            found[f"mtp.{norm}.weight"] = 0.1 * torch.randn(SIZE)
        state = 0.2 * strange * torch.randn(SIZE, SIZE)
        found["mtp.fc.weight"] = torch.cat([torch.eye(SIZE), state], 1)
        found.pop(without, None)
        save_file({key: t.contiguous() for key, t in found.items()}, path / "model.safetensors")
        return Drafting(path, found)

    return write


def engine(path: Path, number: int = 0, **options) -> LLM:
    method = (
        {"method": "mtp", "num_speculative_tokens": number, "adaptive": False} if number else None
    )
    common = {"platform": "cpu", "dtype": "float32", "max_model_len": 64, "block_size": 16}
    settings = {"max_num_seqs": 4, "skip_tokenizer_init": True, "speculative_config": method}
    return LLM(config=EngineConfig(str(path), **{**common, **settings, **options}))


@pytest.mark.parametrize(
    ("name", "mode"), [("qwen3-next", "none"), ("qwen3-next", "align"), ("qwen3.5-moe", "all")]
)
def test_answers_are_those_without_drafts(make, name, mode):
    made = make(name, strange=0.3)
    prompts = [TokensPrompt(range(n, 3 * n)) for n in (1, 9, 17, 18)]
    drawn = replace(GREEDY, temperature=10.0, seed=7)  # whose tokens the layer often misses
    params = [GREEDY, drawn, GREEDY, drawn]
    with engine(made.path) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
    settings = {"max_num_batched_tokens": 24, "async_scheduling": mode != "none"}
    with engine(made.path, 3, state_cache_mode=mode, **settings) as llm:
        for _ in range(2):  # then with a warm cache
            found = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
            assert found == expected
        stats = llm.stats()
        assert 10 < stats.num_accepted_tokens < stats.num_draft_tokens - 10
        assert stats.num_accepted_at[2] > 5
        assert mode != "all" or stats.num_hit_tokens > 0


@pytest.mark.parametrize("method", ["eagle", "medusa"])
def test_heads_of_their_own_change_no_answer(make, tmp_path, method):
    made = make("qwen3-next", strange=0.3)
    head = eagle.head_weights(method, made.weights, 1)
    path = eagle.write(tmp_path / "head", head, **eagle.HEAD_CONFIGS[method])
    prompts = [TokensPrompt(range(n, 3 * n)) for n in (1, 9, 17, 18)]
    params = [GREEDY, replace(GREEDY, temperature=10.0, seed=7)] * 2
    with engine(made.path) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
    drafts = {"method": method, "model": str(path), "num_speculative_tokens": 3, "adaptive": False}
    settings = {"max_num_batched_tokens": 24, "state_cache_mode": "all", "async_scheduling": True}
    with engine(made.path, speculative_config=drafts, **settings) as llm:
        for _ in range(2):  # then with a warm cache
            found = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
            assert found == expected
        stats = llm.stats()
        assert 10 < stats.num_accepted_tokens < stats.num_draft_tokens - 10


def test_drafts_are_those_of_the_layer(make, checkpoints, variants, monkeypatch):
    made = make("qwen3-next", strange=0.5)
    theirs = copy.deepcopy(checkpoints.get(variants["qwen3-next"]).model)
    theirs.model.embed_tokens.weight.data.copy_(made.weights["model.embed_tokens.weight"])
    for key, tensor in theirs.named_parameters():
        if key.endswith(OUT):
            tensor.data.mul_(0.5)
    seen: list[tuple[list[int], list[int]]] = []
    propose = Heads.propose

    def spy(self, wanted):
        seen.extend((list(one.request.token_ids), list(one.made)) for one in wanted)
        return propose(self, wanted)

    monkeypatch.setattr(Heads, "propose", spy)
    with engine(made.path, 1) as llm:
        llm.generate([TokensPrompt(range(5, 12)), TokensPrompt([3])], GREEDY)
    assert len(seen) > 20
    for ids, drafts in seen[::4]:
        logits = predicted(theirs, made.weights, ids)
        assert logits[drafts[0]] >= logits.max() - 1e-4 * logits.abs().max()


def predicted(theirs: nn.Module, weights: Weights, ids: list[int]) -> Tensor:
    """Return the logits of the token after the next one, [VOCAB]."""
    eps = theirs.config.rms_norm_eps

    def norm(x: Tensor, name: str) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * (1 + weights[name])

    with torch.inference_mode():
        states = theirs.model(torch.tensor([ids[:-1]]), use_cache=False).last_hidden_state
        embedded = weights["model.embed_tokens.weight"][ids[1:]][None]
        parts = [
            norm(embedded, "mtp.pre_fc_norm_embedding.weight"),
            norm(states, "mtp.pre_fc_norm_hidden.weight"),
        ]
        joined = torch.cat(parts, -1) @ weights["mtp.fc.weight"].T
        count = joined.shape[1]
        places = torch.arange(count)[None]
        unseen = torch.full((count, count), -torch.inf).triu(1)[None, None]
        layer = theirs.model.layers[ATTENDING]
        turned = theirs.model.rotary_emb(joined, places)
        out = layer(joined, position_embeddings=turned, attention_mask=unseen, position_ids=places)
        out = out[0] if isinstance(out, tuple) else out
        return norm(out, "mtp.norm.weight")[0, -1] @ weights["lm_head.weight"].T


def test_a_file_without_the_layer_is_named(make):
    made = make("qwen3-next", 0.3, without="mtp.fc.weight")
    with pytest.raises(CheckpointError, match=r"lacks mtp\.fc\.weight"):
        engine(made.path, 1)
    config = json.loads((made.path / "config.json").read_text())
    (made.path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 0}))
    with pytest.raises(ConfigError, match="has none"):
        engine(made.path, 1)


@pytest.mark.parametrize(("name", "mode"), [("qwen3-next", "align"), ("falcon-h1", "none")])
def test_a_draft_model_may_keep_states(variants, checkpoints, tmp_path, monkeypatch, name, mode):
    path, small = checkpoints.get(variants[name]).path, tmp_path / "small"
    shutil.copytree(path, small)
    for file in small.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            found = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        save_file({k: t * 0.95 if k.endswith(OUT) else t for k, t in found.items()}, file)
    seen: list[tuple[list[int], list[int]]] = []
    propose = DraftModel.propose

    def spy(self, wanted):
        made = propose(self, wanted)
        seen.extend((list(w.request.token_ids), d) for w, d in zip(wanted, made, strict=True) if d)
        # Of every other call the last drafts are refused.
        spoiled = [[*d[:-1], (d[-1] + 1) % VOCAB] if d else [] for d in made]
        return spoiled if len(seen) % 2 else made

    monkeypatch.setattr(DraftModel, "propose", spy)
    prompts = [TokensPrompt(range(n, 3 * n)) for n in (1, 9, 17)]
    with engine(path) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]
    method = {
        "method": "draft_model",
        "model": str(small),
        "num_speculative_tokens": 3,
        "adaptive": False,
    }
    settings = {"max_num_batched_tokens": 24, "state_cache_mode": mode}
    with engine(path, speculative_config=method, **settings) as llm:
        found = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]
        stats = llm.stats()
    assert found == expected
    assert 5 < stats.num_accepted_tokens < stats.num_draft_tokens - 3
    # The states that drafts come from are those of the sequence, whatever was refused before.
    with engine(small) as llm:
        own = [replace(GREEDY, max_tokens=len(drafts)) for _, drafts in seen]
        alone = llm.generate([TokensPrompt(ids) for ids, _ in seen], own)
    made = [drafts for _, drafts in seen]
    right = sum(a.outputs[0].token_ids == d for a, d in zip(alone, made, strict=True))
    assert right >= 0.9 * len(made) > 10
