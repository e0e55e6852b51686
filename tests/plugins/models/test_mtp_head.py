"""Layers that speculators wrote in a directory of their own, against transformers' modules."""

import json
import random
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tests.plugins.models.test_further_drafts import watched
from tests.plugins.models.test_further_forms import OPTIONS, Form, Published

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError, ConfigError

NAMES = {
    "enorm": "token_layernorm",
    "hnorm": "hidden_layernorm",
    "join": "input_proj",
    "norm": "final_layernorm",
}
LAYER = "mtp_layers.0."
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
UNTIED = {"tie_word_embeddings": False}
FORMS = {
    "qwen3": Form("qwen3", 1, LAYER, NAMES, UNTIED),
    **{
        name: Form(name, 1, LAYER, NAMES, UNTIED, offset=1.0)
        for name in ("qwen3-next", "qwen3.5", "qwen3.5-moe-seeing")
    },
}


class Pair:
    """A model, and the layer beside it as speculators saves it."""

    def __init__(self, form: Form, checkpoint, path: Path) -> None:
        self.path, self.head = path / "model", path / "head"
        for place in (self.path, self.head):
            place.mkdir()
        self.published = Published(form, checkpoint, self.path, chain=True)
        tensors = load_file(self.path / "model.safetensors")
        own = {name: tensor for name, tensor in tensors.items() if name.startswith(LAYER)}
        save_file(own, self.head / "model.safetensors")
        rest = {name: tensor for name, tensor in tensors.items() if name not in own}
        save_file(rest, self.path / "model.safetensors")
        config = json.loads((self.path / "config.json").read_text())
        kind = type(checkpoint.model)
        theirs = kind.from_pretrained(self.path, dtype="float32", attn_implementation="eager")
        self.published.theirs = theirs
        self.published.core = getattr(theirs.model, "language_model", theirs.model)
        self.published.lm_head = theirs.lm_head
        self.architecture = config["architectures"][0]
        self.inner = config.get("text_config", config)
        self.write()

    def write(self, **changes: object) -> None:
        verifier = {"name_or_path": "x", "architectures": [self.architecture]}
        values = {
            "architectures": ["MTPDraftModel"],
            "model_type": "speculator_model",
            "speculators_model_type": "mtp",
            "num_nextn_predict_layers": 1,
            "transformer_layer_config": self.inner,
            "speculators_config": {"algorithm": "mtp", "verifier": verifier},
        }
        (self.head / "config.json").write_text(json.dumps(values | changes))

    def open(self, number: int | None = 2, **options: object) -> LLM:
        drafting = {
            "method": "mtp",
            "model": str(self.head),
            "num_speculative_tokens": number,
            "adaptive": False,
        }
        chosen = drafting | options if number else None
        return LLM(str(self.path), speculative_config=chosen, **OPTIONS)


@pytest.fixture
def pair(variants, checkpoints, tmp_path):
    def make(name: str) -> Pair:
        form = FORMS[name]
        return Pair(form, checkpoints.get(variants[form.variant]), tmp_path)

    return make


@pytest.mark.parametrize("name", FORMS)
def test_drafts_are_those_of_transformers_modules_and_change_no_token(pair, name, monkeypatch):
    made, seen = pair(name), watched(monkeypatch)
    prompts = [TokensPrompt([random.randrange(3, 200) for _ in range(n)]) for n in (2, 17, 30)]
    with made.open(None) as llm:
        plain = [r.outputs[0].token_ids for r in llm.generate(prompts, PARAMS)]
    with made.open() as llm:
        assert [r.outputs[0].token_ids for r in llm.generate(prompts, PARAMS)] == plain
        assert llm.stats().num_accepted_tokens > 3
    seen = [(ids, drafts[0]) for ids, drafts in seen if drafts]
    assert len(seen) > 5
    gaps = []
    for ids, draft in seen[::2]:
        logits = made.published.expected(ids)[1][-1]
        gaps.append(float((logits.max() - logits[draft]) / logits.abs().max()))
    assert sum(gap <= 1e-4 for gap in gaps) >= 0.9 * len(gaps), gaps  # choices may be near ties


def test_what_cannot_be_read_is_named(pair):
    made = pair("qwen3")
    for changes, message in (
        ({"speculators_model_type": "eagle3"}, "is 'eagle3', not 'mtp'; .* or none"),
        ({"num_nextn_predict_layers": 2}, "num_nextn_predict_layers is 2"),
        ({"transformer_layer_config": {"model_type": "opt"}}, "model_type is 'opt'.* qwen3"),
        ({"transformer_layer_config": {**made.inner, "hidden_size": 32}}, "hidden_size of the he"),
        ({"speculators_config": {"verifier": {"architectures": ["A"]}}}, "trained for A, but"),
    ):
        made.write(**changes)
        with pytest.raises((CheckpointError, ConfigError), match=f"config.model .*{message}"):
            made.open()
    made.write()
    with pytest.raises(ConfigError, match=r"speculative_config\.model is missing"):
        made.open(model="")
