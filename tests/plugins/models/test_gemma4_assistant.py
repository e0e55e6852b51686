"""Assistants of Gemma 4: their drafts are those of transformers, whatever the model looks like."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from tests.plugins.models.conftest import GEMMA4, VOCAB
from tests.plugins.models.test_further_drafts import watched
from torch import Tensor, nn

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError, ConfigError

SIZE, DRAFTS = 64, 3
OPTIONS = {
    "platform": "cpu",
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_model_len": 64,
    "max_num_batched_tokens": 12,
    "block_size": 16,
    "kv_cache_memory_bytes": 1 << 21,
}
PARAMS = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
TEXT = {
    **GEMMA4,
    "vocab_size": VOCAB,
    "hidden_size": SIZE,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "per_layer_config": {"1": {"head_dim": 32}, "3": {"head_dim": 32}},
    "tie_word_embeddings": False,
}
ALONE = {
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
    "num_kv_shared_layers": 4,
}
#: What targets and assistants have, by name: the same heads, fewer and more, and groups of tokens.
FAMILIES = {
    "shared": ({"num_kv_shared_layers": 2}, {}, {}),
    "fewer-heads": ({"num_kv_shared_layers": 0}, {"num_attention_heads": 2}, {}),
    "more-heads": ({"num_kv_shared_layers": 2}, {"num_attention_heads": 6}, {}),
    "groups": (
        {"num_kv_shared_layers": 2},
        {"tie_word_embeddings": True},
        {
            "use_ordered_embeddings": True,
            "num_centroids": 16,
            "centroid_intermediate_top_k": 6,
            "tie_word_embeddings": True,
        },
    ),
}


#: Assistants that heed what attention says, so that their drafts are seldom right.
HEEDING = ("fewer-heads", "more-heads", "groups")


def randomize(model: nn.Module, written: float = 0.15) -> None:
    """Draw weights; norms of what layers write are about `written`."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                late = "post_" in name
                weight.normal_(written if late else 1.0, 0.05 if late else 0.2)
            else:
                weight.normal_(0.0, 1.5 * weight.shape[-1] ** -0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.normal_(1.0, 0.1)


class Pair:
    """A target and its assistant, saved."""

    def __init__(self, name: str, path: Path) -> None:
        target, text, more = FAMILIES[name]
        torch.manual_seed(random.getrandbits(31))
        config = transformers.Gemma4TextConfig(**TEXT | target)
        self.target = transformers.Gemma4ForCausalLM(config).eval()
        text = transformers.Gemma4TextConfig(**TEXT | ALONE | text)
        own = {"backbone_hidden_size": SIZE, "tie_word_embeddings": False, **more}
        own = transformers.Gemma4AssistantConfig(text_config=text, **own)
        self.assistant = transformers.Gemma4AssistantForCausalLM(own).eval()
        randomize(self.target)
        randomize(self.assistant, 6.0 if name in HEEDING else 0.15)
        # Each token almost says the next, as both models know.
        vectors = 8 * nn.functional.normalize(torch.randn(VOCAB, SIZE))
        heads = torch.empty_like(vectors)
        heads[torch.randperm(VOCAB)] = vectors
        with torch.no_grad():
            self.target.model.embed_tokens.weight.copy_(vectors)
            self.target.lm_head.weight.copy_(heads)
            self.assistant.lm_head.weight.copy_(heads)
            joined = torch.cat([torch.eye(SIZE), 0.3 * torch.randn(SIZE, SIZE)], 1)
            self.assistant.pre_projection.weight.copy_(joined)
            if self.assistant.masked_embedding is not None:
                self._group(heads, len(self.assistant.masked_embedding.centroids.weight))
        self.paths = path / "target", path / "assistant"
        for model, place in zip((self.target, self.assistant), self.paths, strict=True):
            model.save_pretrained(place)
        self.options = {
            "method": "gemma4_assistant",
            "model": str(self.paths[1]),
            "num_speculative_tokens": DRAFTS,
            "adaptive": False,
        }

    def _group(self, heads: Tensor, count: int) -> None:
        """Order tokens by one channel, so that a group's tokens resemble each other a little."""
        masked = self.assistant.masked_embedding
        order = heads[:, 0].argsort()
        masked.token_ordering.copy_(order)
        masked.centroids.weight.copy_(heads[order].view(count, -1, SIZE).mean(1))

    @torch.no_grad()
    def gaps(self, ids: list[int], drafts: list[int]) -> list[float]:
        """Return by how far each draft's logit is below the largest; they follow each other."""
        known = torch.tensor([ids])
        out = self.target.model(known[:, :-1], use_cache=False, return_shared_kv_states=True)
        # As of the model's cache: transformers sees a token more where nothing is cached.
        window = TEXT["sliding_window"]
        keys, values = out.shared_kv_states["sliding_attention"]
        within = keys[:, :, -window:], values[:, :, -window:]
        read = {**out.shared_kv_states, "sliding_attention": within}
        state, last, found = out.last_hidden_state[:, -1:], known[:, -1:], list[float]()
        for draft in drafts:
            embedded = self.target.get_input_embeddings()(last)
            made = self.assistant(
                inputs_embeds=torch.cat([embedded, state], -1),
                position_ids=torch.tensor([[len(ids) - 1]]),
                shared_kv_states=read,
            )
            logits = made.logits[0, 0]
            found.append(float((logits.max() - logits[draft]) / logits.abs().max()))
            state, last = made.last_hidden_state, torch.tensor([[draft]])
        return found


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    made: dict[str, Pair] = {}

    def get(name: str) -> Pair:
        if name not in made:
            made[name] = Pair(name, tmp_path_factory.mktemp("assistant"))
        return made[name]

    return get


def draw(count: int) -> list[int]:
    return [random.randrange(3, VOCAB) for _ in range(count)]


@pytest.mark.parametrize("name", FAMILIES)
def test_drafts_are_those_of_transformers(name, pairs, monkeypatch):
    """Behind prompts in parts, accepted and refused drafts, and answers stay as they were."""
    pair, seen = pairs(name), watched(monkeypatch)
    prompts = [TokensPrompt(draw(n)) for n in (2, 17, 30)]
    with LLM(str(pair.paths[0]), **OPTIONS) as llm:
        plain = [r.outputs[0].token_ids for r in llm.generate(prompts, PARAMS)]
    with LLM(str(pair.paths[0]), speculative_config=pair.options, **OPTIONS) as llm:
        assert [r.outputs[0].token_ids for r in llm.generate(prompts, PARAMS)] == plain
        stats = llm.stats()
    assert (
        name in HEEDING or stats.num_accepted_tokens > 0.1 * stats.num_draft_tokens
    )  # by chance 1 of 256
    seen = [(ids, made) for ids, made in seen if made]
    assert len(seen) > 10 and any(len(made) == DRAFTS for _, made in seen)
    gaps = [gap for ids, made in seen[::2] for gap in pair.gaps(ids, made)]
    assert sum(gap <= 1e-4 for gap in gaps) >= 0.9 * len(gaps), gaps  # choices may be near ties


def test_texts_end_with_the_last_position(pairs):
    """Whose draft would stand behind it."""
    pair, found = pairs("groups"), []
    prompts, params = [TokensPrompt(draw(n)) for n in (63, 60)], SamplingParams(max_tokens=9)
    for more in ({}, {"speculative_config": pair.options}):
        with LLM(str(pair.paths[0]), **OPTIONS, **more) as llm:
            outputs = llm.generate(prompts, replace(params, temperature=0.0, ignore_eos=True))
            found.append([r.outputs[0].token_ids for r in outputs])
    assert found[0] == found[1] and [len(ids) for ids in found[0]] == [1, 4]


@pytest.mark.slow  # two processes
def test_ranks_divide_it(pairs):
    pair, found = pairs("more-heads"), []
    prompts = [TokensPrompt(draw(n)) for n in (2, 17, 30)]
    for more in ({}, {"tensor_parallel_size": 2, "speculative_config": pair.options}):
        with LLM(str(pair.paths[0]), **OPTIONS, **more) as llm:
            found.append([r.outputs[0].token_ids for r in llm.generate(prompts, PARAMS)])
            stats = llm.stats()
    assert found[0] == found[1] and stats.num_draft_tokens > 0


def changed(pair: Pair, path: Path, **values) -> dict[str, object]:
    """Describe an assistant otherwise; return the options that name it."""
    path = path / "changed"
    path.mkdir()
    config = json.loads((pair.paths[1] / "config.json").read_text())
    config["text_config"] |= values.pop("text_config", {})
    (path / "config.json").write_text(json.dumps(config | values))
    (path / "model.safetensors").symlink_to(pair.paths[1] / "model.safetensors")
    return pair.options | {"model": str(path)}


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"backbone_hidden_size": 32}, ConfigError, "backbone_hidden_size of the head is 32"),
        ({"text_config": {"head_dim": 24}}, ConfigError, "heads of 24 channels"),
        ({"text_config": {"enable_moe_block": True}}, CheckpointError, "attention and MLPs alone"),
        (
            {"use_ordered_embeddings": True, "num_centroids": 7},
            CheckpointError,
            "256 tokens in equal groups",
        ),
    ],
)
def test_what_does_not_fit_is_named(values, error, message, pairs, tmp_path):
    pair = pairs("shared")
    options = changed(pair, tmp_path, **values)
    with pytest.raises(error, match=message):
        LLM(str(pair.paths[0]), speculative_config=options, **OPTIONS).close()


def test_kinds_of_layers_that_the_model_lacks_are_named(pairs, tmp_path):
    pair = pairs("shared")
    config = json.loads((pair.paths[0] / "config.json").read_text())
    changes = {"layer_types": ["full_attention"] * 4, "per_layer_config": None}
    (tmp_path / "config.json").write_text(json.dumps(config | changes | {"head_dim": 32}))
    options = {**OPTIONS, "load_format": "dummy", "speculative_config": pair.options}
    with pytest.raises(ConfigError, match="no layers of sliding_attention that it could read"):
        LLM(str(tmp_path), **options).close()


def test_another_model_is_refused(pairs):
    with pytest.raises(ConfigError, match="makes no drafts for Qwen3ForCausalLM"):
        LLM("demo", platform="cpu", speculative_config=pairs("shared").options).close()
