"""Layers that predict further tokens in every published form, against transformers' own modules.

A layer of a tiny checkpoint is written once more where its family publishes such a layer, with
random norms and a random matrix around it. Plain code joins and adds; transformers' modules attend
and compute the MLP. Each form is what the docstring of its family's module names.
"""

import json
import random
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.plugins.models.conftest import DOTS3, EXPERTS, NEMOTRON_H, Stepper, Variant
from tests.plugins.models.test_fused_qkv import quantized, restored
from torch import Tensor, nn

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe_quantization import fp8

SIZE, LENGTH = 64, 64
#: Relative to the largest: float32 in another order.
TOLERANCE = 1e-4
NEXT = "num_nextn_predict_layers"
NORMED = {"enorm": "enorm", "hnorm": "hnorm", "join": "eh_proj", "norm": "final_layernorm"}
DEEPSEEK = {**NORMED, "norm": "shared_head.norm"}
QWEN = {
    "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden",
    "join": "mtp.fc",
    "norm": "mtp.norm",
}


@dataclass(frozen=True)
class Form:
    """How a family publishes the layer.

    Attributes:
        variant: Of the checkpoint, by name or described.
        layer: The layer of it that is like that one.
        prefix: Of the copy, with {} for the number of the decoder's layers.
        names: Of what is beside it, whole or behind the prefix.
        config: What config.json says of it.
        renames: Of the layer's tensors.
        offset: Norms add it to their weights.
        normed: The next draft reads what the norm behind puts out.
        residual: It reads the state before the decoder's final norm.
        head: An output matrix of its own.
        half: A part of a layer of two attentions.
        blocks: What is one block each, numbered as layers.
        seeing: The class of a model that sees, of which the checkpoint is the text part.
        behind: Norms follow the blocks.
    """

    variant: str | Variant
    layer: int
    prefix: str = "model.layers.{}."
    names: dict[str, str] = field(default_factory=lambda: NORMED)
    config: dict[str, Any] = field(default_factory=lambda: {NEXT: 1})
    renames: tuple[tuple[str, str], ...] = ()
    offset: float = 0.0
    normed: bool = True
    residual: bool = False
    head: str | None = None
    half: int | None = None
    blocks: int = 1
    seeing: str | None = None
    behind: bool = False


NEMOTRON = {
    **NEMOTRON_H,
    **EXPERTS,
    "n_routed_experts": 4,
    "moe_shared_expert_intermediate_size": 24,
    "moe_latent_size": 24,
    "layers_block_type": ["linear_attention", "full_attention", "moe"],
}
FORMS = {
    "hunyuan3": Form("hunyuan3", 2),
    "ling2": Form("sarvam-moe", 2),
    "ling3": Form("ling3", 1),
    "exaone-moe": Form("exaone-moe", 0, "mtp.layers.0.", QWEN),
    "exaone-moe-full": Form(
        "exaone-moe-defaults",
        0,
        "mtp.layers.0.",
        QWEN,
        {"mtp_layer_types": ["sliding_attention"]},
    ),
    "exaone4.5": Form(
        "exaone4",
        0,
        "mtp.layers.0.",
        QWEN,
        {},
        seeing="Exaone4_5_ForConditionalGeneration",
        behind=True,
    ),
    "dots3": Form(
        Variant(
            "dots3-further",
            "Dots3Note",
            {**DOTS3, "use_dsa": None, "mlp_layer_types": ["sparse", "dense", "sparse"]},
        ),
        1,
        names={**DEEPSEEK, "embedding": "model.mtp.embed_tokens"},
    ),
    "mellum": Form(
        "mellum", 0, "mtp.layers.0.", QWEN, {"num_mtp_layers": 1, "mtp_layer_types": None}
    ),
    "step": Form(
        "step3-published",
        0,
        names={**DEEPSEEK, "norm": "transformer.shared_head.norm"},
        offset=1.0,
        normed=False,
        head="transformer.shared_head.output",
    ),
    "minimax-m3": Form(
        "minimax-m3",
        2,
        "model.mtp.layers.0.transformer_layer.",
        {key: f"model.mtp.layers.0.{name}" for key, name in NORMED.items()},
        {"num_mtp_modules": 1},
        offset=1.0,
        normed=False,
    ),
    "ernie": Form(
        "ernie4_5-moe",
        0,
        "model.mtp_block.0.",
        {
            "enorm": "model.mtp_emb_norm.0",
            "hnorm": "model.mtp_hidden_norm.0",
            "join": "model.mtp_linear_proj.0",
        },
        normed=False,
        residual=True,
    ),
    "longcat": Form(
        "longcat",
        0,
        "model.mtp.layers.0.",
        {"enorm": "enorm.m", "hnorm": "hnorm.m", "join": "eh_proj", "norm": "model.mtp.norm"},
        {},
        ((r"^(self_attn|\w+_layernorm)\.0\.", r"\1."), (r"^mlps\.0\.", "transformer_layer.mlp.")),
        half=0,
    ),
    "glm5-next": Form("glm5-next", 3, names=DEEPSEEK),
    "hy4": Form("hy4", 1, "model.mtp_layers.0."),
    "nemotron": Form(
        Variant("nemotron-further", "NemotronH", NEMOTRON), 1, "mtp.layers.{}.", blocks=2
    ),
}


class Published:
    """A checkpoint with such a layer, and what transformers' modules make of it.

    Args:
        form: How it is published.
        checkpoint: Of the decoder.
        path: An empty directory.
        chain: Make tokens almost say the next ones, as the layer knows.
    """

    def __init__(self, form: Form, checkpoint, path: Path, chain: bool = False) -> None:
        self.form, self.path, self.theirs = form, path, checkpoint.model
        tensors = load_file(checkpoint.path / "model.safetensors")
        config = json.loads((checkpoint.path / "config.json").read_text())
        for file in checkpoint.path.glob("generation*"):
            shutil.copy(file, path)
        inner = config.get("text_config", config)
        inner |= form.config
        self.core = getattr(self.theirs, "model", self.theirs)
        self.core = getattr(self.core, "language_model", self.core)
        self.lm_head = self.theirs.get_output_embeddings()
        count, blocks = len(self.core.layers), form.blocks
        own = {}
        for block in range(blocks):
            found = re.compile(rf"^(.*?)layers\.{form.layer + block}\.(.*)$")
            prefix = form.prefix.format(block if blocks > 1 else count)
            for name, tensor in tensors.items():
                match = found.match(name)
                if match is None or match[1].split(".")[0] == "mtp":
                    continue
                rest, kept = match[2], match[2]
                for pattern, replacement in form.renames:
                    rest = re.sub(pattern, replacement, rest)
                if form.half is None or rest != kept:
                    own[prefix + rest] = tensor.clone()
        self.beside = {
            key: torch.randn(SIZE, 2 * SIZE) / 8
            if key == "join"
            else torch.randn_like(self.core.get_input_embeddings().weight)
            if key == "embedding"
            else 1 - form.offset + 0.2 * torch.randn(SIZE)
            for key in form.names
        }
        if chain:
            self.beside["join"] = torch.cat([torch.eye(SIZE), 0.1 * torch.randn(SIZE, SIZE)], 1)
        first, last = (form.prefix.format(n if blocks > 1 else count) for n in (0, blocks - 1))
        for key, name in form.names.items():
            whole = name.startswith(("model.", "mtp."))
            prefix = "" if whole else last if key == "norm" else first
            own[f"{prefix}{name}.weight"] = self.beside[key]
        if form.head is not None:
            self.beside["head"] = torch.randn_like(self.lm_head.weight)
            own[f"{first}{form.head}.weight"] = self.beside["head"]
        tensors |= own
        if chain:
            _chain(tensors)
        save_file({k: t.clone() for k, t in tensors.items()}, path / "model.safetensors")
        if form.seeing is not None:
            text = {**config, "model_type": "exaone4"}
            config = {"architectures": [form.seeing], "text_config": text}
        (path / "config.json").write_text(json.dumps(config))

    def _norm(self, x: Tensor, key: str) -> Tensor:
        eps = getattr(self.core.config, "rms_norm_eps", None) or self.core.config.layer_norm_epsilon
        scaled = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
        return scaled * (self.beside[key] + self.form.offset)

    def _blocks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the norms and modules whose results join the residual."""
        form, layer = self.form, self.core.layers[self.form.layer]
        if form.blocks > 1:
            return [(one.norm, one.mixer) for one in self.core.layers[form.layer :][:2]]
        if form.behind:
            return [
                (layer.post_attention_layernorm, layer.self_attn),
                (layer.post_feedforward_layernorm, layer.mlp),
            ]
        parts = (layer.input_layernorm, layer.self_attn), (layer.post_attention_layernorm, None)
        if form.half is not None:
            (one, attn), (two, _) = parts
            return [(one[0], attn[0]), (two[0], layer.mlps[0])]
        mlp = layer.mlp if hasattr(layer, "mlp") else layer.block_sparse_moe
        return [parts[0], (parts[1][0], mlp)]

    @torch.no_grad()
    def expected(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        """Return what the next draft reads, [n - 1, SIZE], and logits, [n - 1, vocab]."""
        given: dict[str, Any] = {}
        (norm, attention), (mlp_norm, mlp) = self._blocks()
        hooks = [
            attention.register_forward_pre_hook(
                lambda module, args, kwargs: given.update(kwargs), with_kwargs=True
            )
        ]
        self.core(torch.tensor([ids[1:]]), use_cache=False)
        states: list[Tensor] = []
        final = getattr(self.core, "norm", None) or self.core.norm_f
        hooks.append(final.register_forward_hook(lambda m, x, y: states.extend((x[0], y))))
        self.core(torch.tensor([ids[:-1]]), use_cache=False)
        for hook in hooks:
            hook.remove()
        state = states[0] if self.form.residual else states[1]
        table = self.beside.get("embedding", self.core.get_input_embeddings().weight)
        embedded = table[torch.tensor([ids[1:]])]
        joined = torch.cat([self._norm(embedded, "enorm"), self._norm(state, "hnorm")], -1)
        x = joined @ self.beside["join"].T

        def attend(x: Tensor) -> Tensor:
            return _first(attention(**{**given, "hidden_states": x}))

        if self.form.behind:
            x = x + norm(attend(x))
            x = x + mlp_norm(_first(mlp(x)))
        else:
            x = x + attend(norm(x))
            x = x + _first(mlp(mlp_norm(x)))
        normed = self._norm(x, "norm") if "norm" in self.form.names else final(x)
        matrix = self.beside.get("head", self.lm_head.weight)
        passed = normed if self.form.normed else x
        return passed[0], (normed @ matrix.T)[0]


def _first(found: Any) -> Tensor:
    return found[0] if isinstance(found, tuple) else found


def _chain(tensors: dict[str, Tensor]) -> None:
    """Make each token's vector say the next one, and layers add little to it."""
    tables = [name for name in tensors if re.search(r"embed(_tokens|dings)\.weight$", name)]
    vectors = 8 * nn.functional.normalize(torch.randn_like(tensors[tables[0]]))
    tensors |= dict.fromkeys(tables, vectors)
    tensors["lm_head.weight"] = torch.empty_like(vectors)
    tensors["lm_head.weight"][torch.randperm(len(vectors))] = vectors
    for name in [name for name in tensors if name.endswith("shared_head.output.weight")]:
        tensors[name] = tensors["lm_head.weight"].clone()
    ends = ("o_proj.weight", "down_proj.weight", "down_proj", "out_proj.weight")
    for name in [name for name in tensors if name.endswith(ends)]:
        tensors[name] = 0.25 * tensors[name]


@pytest.fixture
def published(variants, checkpoints, tmp_path):
    def make(name: str, chain: bool = False) -> Published:
        form = FORMS[name]
        variant = variants[form.variant] if isinstance(form.variant, str) else form.variant
        return Published(form, checkpoints.get(variant), tmp_path, chain)

    return make


@pytest.mark.parametrize("name", FORMS)
def test_states_and_logits_are_those_of_the_formula(published, name):
    made = published(name)
    ids = [random.randrange(3, 200) for _ in range(15)]
    stepper = Stepper(made.path, LENGTH, block_size=16, further=True)
    hidden = stepper.forward({0: ids[:-1]})
    head = stepper.model.draft_head
    with torch.inference_mode():
        passed, normed = head.forward(
            torch.tensor(ids[1:], dtype=torch.int32), hidden, stepper.batch
        )
        logits = (
            stepper.model.head(normed, "generate")
            if made.form.head is None
            else head._lm_head(normed)
        )
    wanted, scores = made.expected(ids)
    assert (passed - wanted).abs().max() <= TOLERANCE * wanted.abs().max()
    assert (logits - scores).abs().max() <= TOLERANCE * scores.abs().max()
    assert torch.equal(head.guess(normed), logits.argmax(1))


BLOCK = (16, 24)


@pytest.mark.parametrize(
    ("name", "kept", "joins"),
    [("hunyuan3", [], False), ("longcat", [], True), ("ling2", ["model.layers.3"], False)],
)
def test_layers_in_blocks_of_fp8_are_those_of_what_these_stand_for(published, name, kept, joins):
    """As DeepSeek writes them; a matrix that joins may be left out, and so may the whole layer."""
    made = published(name)
    values = {"quant_method": "fp8", "weight_block_size": list(BLOCK)}
    given = {"block_size": 16, "further": True}
    form = fp8.read({**values, "modules_to_not_convert": [*kept, "gate"]})
    wanted = Stepper(made.path, LENGTH, load=False, **given, format=form).ctx.weights
    tensors = load_file(made.path / "model.safetensors")
    back, stored = dict(tensors), dict(tensors)
    scaled = [n for n in tensors if f"{wanted.known_as(n)}_scale_inv" in wanted.expected]
    for key in scaled:
        numbers, scales = quantized(tensors[key], *BLOCK)
        stored |= {key: numbers, f"{key}_scale_inv": scales}
        back[key] = restored(numbers, scales, *BLOCK)
    layer = made.form.prefix.format(len(made.core.layers))
    assert (f"{layer}eh_proj.weight" in scaled) is joins
    assert any(key.startswith(layer) for key in scaled) is not bool(kept)
    ids, found = [random.randrange(3, 200) for _ in range(15)], []
    states = list[Tensor]()
    for weights, own in ((back, {}), (stored, {"format": form})):
        save_file({k: t.contiguous() for k, t in weights.items()}, made.path / "model.safetensors")
        stepper = Stepper(made.path, LENGTH, **given, **own)
        states.append(stepper.forward({0: ids[:-1]}))
        read = torch.tensor(ids[1:], dtype=torch.int32)
        with torch.inference_mode():
            _, normed = stepper.model.draft_head.forward(read, states[0], stepper.batch)
            found.append(stepper.model.draft_head.logits(normed))
    plain, ours = found  # whose x has 8 bits
    error = (ours - plain).abs().mean(1) / plain.abs().mean(1)
    assert error.median() <= 0.2  # rounding may choose other experts for few tokens


OPTIONS = {
    "platform": "cpu",
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_model_len": LENGTH,
    "max_num_batched_tokens": 12,
    "block_size": 16,
    "kv_cache_memory_bytes": 1 << 21,
}


#: Those whose drafts an engine makes in every run of the tests.
OFTEN = ("ernie", "nemotron")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in OFTEN else pytest.mark.slow) for n in FORMS]
)
def test_tokens_are_those_without_drafts(published, name):
    made = published(name, chain=True)
    prompts = [TokensPrompt([random.randrange(3, 200) for _ in range(n)]) for n in (2, 17, 30)]
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    drafting = {"method": "mtp", "num_speculative_tokens": 2, "adaptive": False}
    with LLM(str(made.path), **OPTIONS) as llm:
        plain = [r.outputs[0].token_ids for r in llm.generate(prompts, params)]
    with LLM(str(made.path), speculative_config=drafting, **OPTIONS) as llm:
        assert [r.outputs[0].token_ids for r in llm.generate(prompts, params)] == plain
        stats = llm.stats()
    assert stats.num_accepted_tokens > 3
