"""Drafts of DeepSeek V4's further layer, against transformers' layer between given streams."""

import copy
import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.plugins.models.conftest import CPU, Checkpoint, Variant, save_tiny

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.layers import BuildContext
from hotshoe.lazy import resolve_lazy
from hotshoe.models import ModelConfig
from hotshoe.slots import SLOTS, Selector
from hotshoe.speculation.drafting import Heads
from hotshoe_models.plugin import ARCHITECTURES

LAYERS, SIZE, COUNT = 3, 64, 3
VALUES = {
    "num_hidden_layers": LAYERS + 1,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 20,
    "moe_intermediate_size": 24,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "num_hash_layers": 1,
    "compress_rate_hca": 8,
    "layer_types": None,
    "compress_ratios": [0, 4, 128, 0],
    "sliding_window": 5,
    "o_groups": 4,
    "o_lora_rank": 12,
    "index_n_heads": 3,
    "index_head_dim": 16,
    "index_topk": 100,  # all, as scores are often equal, and then any may be chosen
    "hc_mult": COUNT,
    "swiglu_limit": 1.5,
}
OPTIONS = {
    "platform": "cpu",
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_model_len": 64,
    "max_num_batched_tokens": 12,
    "kv_cache_memory_bytes": 1 << 21,
}
PARAMS = SamplingParams(temperature=0.0, max_tokens=14, ignore_eos=True)


class Published:
    """A model of three layers, and a fourth that predicts a further token."""

    def __init__(self, path):
        whole = path / "whole"
        whole.mkdir()
        made: Checkpoint = save_tiny(
            Variant("v4", "DeepseekV4", VALUES), whole, random.getrandbits(31)
        )
        self.model, self.path = made.model.model, path / "published"
        self.lm_head = made.model.lm_head
        own = {f"{name}.weight": 1 + 0.3 * torch.randn(SIZE) for name in ("enorm", "hnorm", "norm")}
        own |= {f"{name}.weight": torch.randn(SIZE, SIZE) / 8 for name in ("e_proj", "h_proj")}
        own["hc_head_fn"] = torch.randn(COUNT, COUNT * SIZE) / 8
        own |= {"hc_head_base": torch.randn(COUNT), "hc_head_scale": torch.rand(1) + 0.5}
        self.own = own
        tensors = {
            name.replace(f"model.layers.{LAYERS}.", "mtp.0."): tensor
            for name, tensor in load_file(whole / "model.safetensors").items()
        }
        tensors |= {f"mtp.0.{name}": tensor for name, tensor in own.items()}
        self.path.mkdir()
        save_file(tensors, self.path / "model.safetensors")
        config = json.loads((whole / "config.json").read_text())
        for key in ("layer_types", "mlp_layer_types"):
            config.pop(key, None)
        config |= {"num_hidden_layers": LAYERS, "compress_ratios": VALUES["compress_ratios"]}
        config |= {"num_hash_layers": 1, "num_nextn_predict_layers": 1}
        (self.path / "config.json").write_text(json.dumps(config))

    def _before(self, ids):
        """Return the streams in front of the fourth layer, and what else it takes."""
        found = []
        layer = self.model.layers[LAYERS]
        hook = layer.register_forward_pre_hook(
            lambda module, args, kwargs: found.append((args[0], kwargs)), with_kwargs=True
        )
        self.model(torch.tensor([ids]), use_cache=False)
        hook.remove()
        return found[0]

    @torch.no_grad()
    def gaps(self, ids, drafts):
        """Return by how far each draft's logit is below the largest; they follow each other."""
        found, own = [], self.own
        norm, head = copy.deepcopy(self.model.norm), copy.deepcopy(self.model.hc_head)
        streams, _ = self._before(ids[:-1])
        read = list(ids[1:])
        for draft in drafts:
            _, rest = self._before([*ids, 3, 3, 3][: len(read)])
            norm.weight.data = own["hnorm.weight"]
            x = norm(streams) @ own["h_proj.weight"].T
            norm.weight.data = own["enorm.weight"]
            x = (
                x
                + (norm(self.model.embed_tokens(torch.tensor([read]))) @ own["e_proj.weight"].T)[
                    :, :, None
                ]
            )
            out = self.model.layers[LAYERS](x, **rest)
            head.hc_fn.data, head.hc_base.data = own["hc_head_fn"], own["hc_head_base"]
            head.hc_scale.data, norm.weight.data = own["hc_head_scale"], own["norm.weight"]
            logits = self.lm_head(norm(head(out)))[0, -1]
            found.append(float((logits.max() - logits[draft]) / logits.abs().max()))
            streams, read = torch.cat((streams, out[:, -1:]), 1), [*read, draft]
        return found


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return Published(tmp_path_factory.mktemp("further"))


def draw(count):
    return [random.randrange(3, 256) for _ in range(count)]


def test_drafts_are_those_of_transformers_layer(published, monkeypatch):
    """Behind prompts in parts, accepted and refused drafts; and answers stay as they were."""
    seen = []
    propose = Heads.propose

    def spy(self, wanted):
        seen.extend((list(one.request.token_ids), list(one.made)) for one in wanted)
        return propose(self, wanted)

    monkeypatch.setattr(Heads, "propose", spy)
    prompts = [TokensPrompt(draw(n)) for n in (2, 17, 30)]
    with LLM(str(published.path), **OPTIONS) as llm:
        plain = [r.outputs[0].token_ids for r in llm.generate(prompts, PARAMS)]
    drafting = {"method": "mtp", "num_speculative_tokens": 2, "adaptive": False}
    with LLM(str(published.path), speculative_config=drafting, **OPTIONS) as llm:
        assert [r.outputs[0].token_ids for r in llm.generate(prompts, PARAMS)] == plain
        assert llm.stats().num_draft_tokens > 0
    seen = [(ids, made) for ids, made in seen if made]
    assert len(seen) > 20 and any(len(made) == 2 for _, made in seen)
    gaps = [gap for ids, made in seen[::2] for gap in published.gaps(ids, made)]
    assert sum(gap <= 1e-4 for gap in gaps) >= 0.9 * len(gaps), gaps  # experts may be near ties


def test_without_drafts_it_is_not_read(published):
    with LLM(str(published.path), **OPTIONS) as llm:
        llm.generate(TokensPrompt(draw(3)), PARAMS)


def build(**changes):
    values = {**VALUES, "vocab_size": 64, "hidden_size": SIZE, "num_attention_heads": 4}
    values |= {"num_hidden_layers": LAYERS, "layer_types": ["sliding_attention"] * LAYERS}
    config = ModelConfig(Path("m"), "DeepseekV4ForCausalLM", values | changes, "float32", 64, ())
    ctx = BuildContext(Selector(SLOTS, [], CPU), "float32", "float32", 4, 64, further=True)
    resolve_lazy(ARCHITECTURES[config.architecture])(config, ctx)
    return ctx


def test_its_ratio_lies_behind_those_of_the_layers():
    for ratios, caches in (([0, 0, 0, 4], 5), ([0, 0, 0, 0], 1), ([0, 0, 0], 1), (None, 1)):
        ctx = build(compress_ratios=ratios)
        assert len(ctx.cache_layers) == LAYERS + caches
        assert "mtp.0.attn.wq_a.weight" in ctx.weights.expected
        assert "mtp.0.ffn.gate.tid2eid" not in ctx.weights.expected
    for strange in ([0, 0, 0, 7], [0, 0, 0, [4]]):
        with pytest.raises(CheckpointError, match=r"compress_ratios.*needs a list of 0, 4, 128"):
            build(compress_ratios=strange)


def test_trees_are_chains(published):
    tree = {"method": "mtp", "speculative_token_tree": "[(0,), (1,), (0, 0)]", "adaptive": False}
    prompt = TokensPrompt(draw(9))
    with LLM(str(published.path), **OPTIONS) as llm:
        [plain] = llm.generate(prompt, PARAMS)
    with LLM(str(published.path), speculative_config=tree, **OPTIONS) as llm:
        chain = {"method": "mtp", "num_speculative_tokens": 2, "adaptive": False}
        assert llm.changes[-1].value == chain
        assert "have no places" in llm.changes[-1].reason
        assert llm.generate(prompt, PARAMS)[0].outputs[0].token_ids == plain.outputs[0].token_ids
        assert llm.stats().num_draft_tokens > 0


def test_what_a_file_lacks_is_named(published, tmp_path):
    tensors = load_file(published.path / "model.safetensors")
    del tensors["mtp.0.h_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((published.path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    drafting = {"method": "mtp", "num_speculative_tokens": 1, "adaptive": False}
    with pytest.raises(CheckpointError, match=r"lacks .*mtp\.0\.h_proj"):
        LLM(str(tmp_path), speculative_config=drafting, **OPTIONS)
    config["num_nextn_predict_layers"] = 0
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"DeepseekV4ForCausalLM in .* has none"):
        LLM(str(tmp_path), speculative_config=drafting, **OPTIONS)
