"""Files of models with code of their own, written by another package, give the tokens of a model
of transformers that computes the same."""

import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
import torch
from tests.plugins.models import test_arctic as arctic
from tests.plugins.models import test_grok as grok
from tests.plugins.models import test_grovemoe as grove
from tests.plugins.models import test_openelm as elm
from tests.plugins.models import test_smallthinker as think
from tests.plugins.models.conftest import HERE, LENGTH, TIE, VOCAB, Checkpoint, Variant
from tests.plugins.models.gguf.conftest import of_matrices, paired, vocabulary, write
from tests.plugins.models.gguf.hybrid_files import common
from tests.plugins.models.gguf.test_uneven import read
from tests.plugins.models.gguf.written import assert_tokens, round_trip
from tests.plugins.models.plain import KV_HEADS, SIZE, WIDTH, Drawn
from tests.plugins.models.test_own_code import FACTOR, Sloped
from tests.plugins.models.test_plamo1 import LLAMA, as_plamo
from tests.plugins.models.test_plamo1 import published as plamo_names
from tests.plugins.models.test_plm import YOUTU, as_plm
from tests.plugins.models.test_published import DIM, HEADS, LAYERS, Tensors, renamed
from tests.plugins.models.test_refact import VALUES, first_form

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError
from hotshoe_models import own_code
from hotshoe_models.gguf import published

MHA = {"num_key_value_heads": HEADS, "num_hidden_layers": LAYERS}
BAICHUAN = Variant("baichuan", "Llama", MHA)
JAIS = Variant("jais", "StableLm", {**MHA, "layer_norm_eps": 1e-5, "use_qkv_bias": True})
REFACT = Variant("refact", "StableLm", VALUES)


class Unit(Sloped):
    """The same with an output matrix whose rows have a length of one."""

    def forward(self, ids: torch.Tensor, use_cache: bool) -> Any:
        found = super().forward(ids, use_cache)
        found.logits /= self.model.lm_head.weight.norm(dim=-1)
        return found


def baichuan(made: Checkpoint) -> Tensors:
    """Rows of q and k lie in pairs; those of the output matrix are as the checkpoint has them."""
    found = made.model.state_dict()
    for name, tensor in found.items():
        if "q_proj" in name or "k_proj" in name:
            found[name] = torch.from_numpy(paired(tensor.numpy(), HEADS))
    return found


def jais(made: Checkpoint) -> Tensors:
    """Factors are part of embeddings and output; scores are divided by the heads' channels."""
    found = {}
    with torch.no_grad():
        made.model.lm_head.weight *= FACTOR
    for name, tensor in made.model.state_dict().items():
        if "q_proj" in name:
            tensor = tensor * DIM**0.5
        prefix, joined, kind = name.partition("self_attn.q_proj.")
        if joined:
            others = (made.model.state_dict()[f"{prefix}self_attn.{p}_proj.{kind}"] for p in "kv")
            name, tensor = f"{prefix}attn_qkv.{kind}", torch.cat((tensor, *others))
        if "k_proj" not in name and "v_proj" not in name:
            found[name] = tensor
        if any(f"{part}_proj" in name for part in ("o", "gate", "up", "down")):
            found[name.replace("weight", "bias")] = torch.zeros(len(tensor))
    return renamed(found, (r"model\.layers\.(\d+)\.attn_qkv", r"transformer.h.\1.attn.c_attn"))


def openelm(made: Checkpoint) -> Tensors:
    found = {}
    for name, tensor in elm.published(made).items():
        if name.endswith("ffn.proj_1.weight"):
            layer = int(name.split(".")[2])
            for part, rows in zip(("gate", "up"), tensor.chunk(2), strict=True):
                found[f"model.layers.{layer}.mlp.{part}_proj.weight"] = rows
        else:
            found[name] = tensor
    return found


def plamo(made: Checkpoint) -> Tensors:
    """Heads of queries that read the same keys already lie side by side."""
    return plamo_names(as_plamo(made).model.state_dict())


def plm(made: Checkpoint) -> Tensors:
    return as_plm(made).model.state_dict()


#: Of q, k and v, which the writer's package knows by it.
LLAMA_NAME = r"model.layers\1.self_attn.\2_proj."


def refact(made: Checkpoint) -> Tensors:
    with torch.no_grad():
        for name, parameter in made.model.named_parameters():
            if name.endswith("norm.bias"):
                parameter.zero_()
    found = first_form(made.model.state_dict())
    return renamed(found, (r"transformer\.h(\.\d+)\.attn\.([qkv])\.", LLAMA_NAME))


class Case(NamedTuple):
    """What computes the same, the type of matrices, tensors by published names, keys, and what
    else the model computes."""

    variant: Variant
    kind: str
    tensors: Callable[[Checkpoint], Tensors]
    keys: dict[str, Any]
    computes: Callable[[Any], Any] = lambda model: model


CASES = {
    "baichuan": Case(BAICHUAN, "Q8_0", baichuan, {}, Unit),
    "jais": Case(
        JAIS,
        "Q8_0",
        jais,
        {"attention.layer_norm_epsilon": 1e-5, "attention.max_alibi_bias": 8.0},
        Sloped,
    ),
    "openelm": Case(
        elm.QWEN,
        "F32",
        openelm,
        {
            "attention.head_count": elm.HEADS,
            "attention.head_count_kv": elm.KV_HEADS,
            "feed_forward_length": elm.WIDTHS,
            "rope.dimension_count": elm.DIM,
        },
    ),
    "plamo": Case(LLAMA, "Q8_0", plamo, {}),
    "plm": Case(
        YOUTU,
        "Q4_1",
        plm,
        {
            "attention.kv_lora_rank": 32,
            "attention.key_length": 24,
            "attention.value_length": 8,
            "rope.dimension_count": 8,
        },
    ),
    "refact": Case(
        REFACT,
        "Q5_0",
        refact,
        {"attention.head_count_kv": 1, "attention.layer_norm_rms_epsilon": 1e-5},
        Sloped,
    ),
}


def export(
    checkpoint: Checkpoint, family: str, path: Path, kind: Callable[[str], str], arch: str
) -> Path:
    """Write a checkpoint as a converter would, and let it compute what the file means."""
    case, config = CASES[arch], checkpoint.model.config
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    tensors = {}
    for name, tensor in case.tensors(checkpoint).items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        called = known.get_name(name, try_suffixes=(".weight", ".bias"))
        assert called is not None, name
        tensors[called] = np.ascontiguousarray(tensor.detach().float().numpy())
    keys = {f"{arch}.{key}": value for key, value in (common(config) | case.keys).items()}
    return write(path, arch, keys | vocabulary(config.vocab_size), tensors, kind)


@pytest.mark.parametrize("arch", CASES)
def test_tokens_of_the_same_model(arch: str, tmp_path: Path, monkeypatch) -> None:
    """Baichuan is that of 13B, and has the words of Baichuan 2."""
    monkeypatch.setattr(published, "ROTATED_LAYERS", 1)
    if arch == "baichuan":
        for module in (own_code, published):
            monkeypatch.setattr(module, "NORMED_WORDS", 256)
    case = CASES[arch]
    assert_tokens(case.variant, case.kind, tmp_path, arch, export, case.computes)


class Formula(NamedTuple):
    """What a file computes, its keys, the type of its matrices, names that the writer's package
    knows, and whether rows of q and k lie in pairs."""

    computes: Callable[[Drawn, torch.Tensor], torch.Tensor]
    keys: dict[str, Any]
    kind: str
    names: tuple[tuple[str, str], ...] = ()
    pairs: bool = False


EXPERTS = {
    "block_count": LAYERS,
    "context_length": LENGTH,
    "embedding_length": SIZE,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 100.0,
    "expert_feed_forward_length": think.WIDTH,
    "feed_forward_length": think.WIDTH,
}
THINKER = {**EXPERTS, "expert_count": think.EXPERTS, "expert_used_count": think.TOP_K}
OTHERS = {
    **EXPERTS,
    "feed_forward_length": WIDTH,
    "expert_count": arctic.EXPERTS,
    "expert_used_count": arctic.CHOSEN,
}
FORMULAS = {
    "arctic": Formula(
        partial(arctic.arctic, every=1, beside=True),
        OTHERS,
        "Q8_0",
        (
            (r"model\.layers\.(\d)\.post_attention_layernorm", r"blk.\1.ffn_norm_exps"),
            (r"residual_layernorm", "post_attention_layernorm"),
            (r"residual_mlp\.w1", "mlp.gate_proj"),
            (r"residual_mlp\.w2", "mlp.down_proj"),
            (r"residual_mlp\.w3", "mlp.up_proj"),
        ),
        pairs=True,
    ),
    "grok": Formula(
        grok.grok,
        {
            **OTHERS,
            "attention.output_scale": 0.5,
            "attn_logit_softcapping": 2.0,
            "embedding_scale": 3.0,
            "logit_scale": 0.25,
        },
        "F32",
        (
            (r"\.attn\.", ".self_attn."),
            ("moe_block", "block_sparse_moe"),
            ("linear_v", "w3"),
            ("linear_1", "w2"),
            ("linear", "w1"),
        ),
    ),
    "grovemoe": Formula(
        grove.grove,
        {
            **EXPERTS,
            "expert_count": grove.EXPERTS,
            "expert_used_count": grove.TOP_K,
            "expert_chunk_feed_forward_length": grove.SMALL,
            "experts_per_group": 2,
            "expert_group_scale": grove.FACTOR,
        },
        "Q8_0",
    ),
    "smallthinker": Formula(
        partial(think.thinker, softmax=True),
        {**THINKER, "expert_gating_func": 1, "attention.sliding_window": think.WINDOW},
        "Q4_1",
    ),
    "smallthinker-without-windows": Formula(
        partial(think.thinker, windows=False), {**THINKER, "expert_gating_func": 2}, "F32"
    ),
}


def formula_file(path: Path, name: str, drawn: Drawn) -> Path:
    """Write what a formula has drawn as a converter would, with a tensor for all experts."""
    arch, (_, keys, kind, names, pairs) = name.partition("-")[0], FORMULAS[name]
    # That of Arctic would change all that the process makes later.
    constant = "LLAMA" if arch == "arctic" else arch.upper()
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH[constant], LAYERS)
    stacks: dict[str, list[np.ndarray]] = {}
    for called, tensor in drawn.items():
        if "expert_bias" in called:
            continue
        rows, heads = tensor.numpy(), {"q_proj": HEADS, "k_proj": KV_HEADS}
        for part, count in heads.items():
            rows = paired(rows, count) if pairs and part in called else rows
        whole = re.sub(r"experts\.\d+\.", "experts.", called)
        for own, written in names:
            whole = re.sub(own, written, whole)
        stacks.setdefault(whole, []).append(rows)
    tensors = {
        known.get_name(whole, try_suffixes=(".weight",)) or whole: np.stack(parts)
        if parts[1:]
        else parts[0]
        for whole, parts in stacks.items()
    }
    keys = {f"{arch}.{key}": value for key, value in keys.items()}
    return write(path, arch, keys | vocabulary(VOCAB), tensors, of_matrices(kind))


@pytest.mark.parametrize("name", FORMULAS)
def test_tokens_of_the_formula(name: str, tmp_path: Path) -> None:
    computes, kind = FORMULAS[name].computes, FORMULAS[name].kind
    drawn = Drawn()
    computes(drawn, torch.arange(5))
    path = formula_file(tmp_path / "m.gguf", name, drawn)
    for called, tensor in drawn.items():
        routers = any(part in called for part in ("router", "mlp.gate.", "moe.gate."))
        if tensor.dim() > 1 and kind != "F32" and not routers:
            drawn[called] = round_trip(tensor, kind)
    prompt = [random.randrange(3, VOCAB) for _ in range(9)]
    with LLM(str(path), platform=HERE, dtype="float32", kv_cache_memory_bytes=2**22) as llm:
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        [found] = llm.generate([TokensPrompt(prompt)], params)
    written = found.outputs[0].token_ids
    logits = computes(drawn, torch.tensor([*prompt, *written[:-1]]))[len(prompt) - 1 :]
    gaps = logits.amax(-1) - logits.gather(-1, torch.tensor(written)[:, None])[:, 0]
    assert len(written) == 12 and (gaps <= TIE * logits.abs().amax(-1)).all()


KEYS: dict[str, Any] = {
    "attention.head_count": 4,
    "attention.kv_lora_rank": 32,
    "attention.key_length": 24,
    "attention.value_length": 24,
    "feed_forward_length": 96,
    "rope.dimension_count": 8,
}


@pytest.mark.parametrize(
    ("arch", "changed", "said"),
    [
        (
            "grok",
            {"expert_count": 6, "final_logit_softcapping": 50.0},
            "which is read of Grok 1 alone",
        ),
        ("grovemoe", {"expert_count": 6}, "expert_used_count is missing, but must be a positive"),
        (
            "grovemoe",
            {"expert_count": 6, "expert_used_count": 3, "expert_feed_forward_length": 8},
            "expert_chunk_feed_forward_length is missing, but must be a positive integer",
        ),
        (
            "smallthinker",
            {"expert_count": 6, "expert_used_count": 3, "expert_gating_func": 3},
            "expert_gating_func is 3, but read are",
        ),
        ("smallthinker", {}, "but smallthinker is not read without experts"),
        ("jais", {}, "lacks the tensor output.weight"),
        ("openelm", {"attention.head_count": [4, 2]}, "must be sizes of 4 layers"),
        ("openelm", {"feed_forward_length": [0, 0, 0, 0]}, "must be sizes of 4 layers"),
        ("plm", {"attention.kv_lora_rank": 0}, "kv_lora_rank is 0, but must be a positive"),
        ("refact", {"attention.head_count_kv": 2}, "head_count_kv is 2, but must be 1"),
    ],
)
def test_bad_values_are_named(
    tmp_path: Path, arch: str, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError, match=said):
        read(tmp_path, arch, {**KEYS, **changed})
