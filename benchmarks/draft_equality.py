"""Greedy tokens of the demo model with drafts of every method, compared with those without.

Run: python benchmarks/draft_equality.py [--prompts 200] [--tokens 48] [--methods ngram mtp ...]
     [FIELD=VALUE ...]

No head was trained for the demo model. So heads have random weights and compute their drafts as
any head does, and then a draft is replaced by the right token with probability 0.7, else by a wrong
one. The draft model is the demo model with weights of eight bits. For `mtp` the demo model is
written as a GLM-4.5 without experts, which computes the same. Prints how many texts are equal, and
how far apart two tokens are where texts part.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe_demo import MODEL

RIGHT = 0.7
METHODS = ("ngram", "ngram_device", "suffix", "draft_model", "eagle", "eagle3", "medusa", "mtp")
#: Layers whose states an EAGLE-3 head takes, and heads of Medusa.
TAPPED, HEADS = [2, 4, 6], 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", metavar="FIELD=VALUE")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    args = parser.parse_intermixed_args()
    options = {
        "dtype": "float32",
        "max_model_len": 256,
        "max_num_seqs": 16,
        "skip_tokenizer_init": True,
        **{key: yaml.safe_load(value) for key, value in (s.split("=", 1) for s in args.settings)},
    }
    ids = draw(args.prompts)
    prompts = [TokensPrompt(each) for each in ids]
    params = SamplingParams(
        temperature=0, max_tokens=args.tokens, ignore_eos=True, detokenize=False, logprobs=2
    )
    with LLM(str(MODEL), **options) as llm:
        plain = llm.generate(prompts, params)
    answers = {
        tuple(each): output.outputs[0].token_ids for each, output in zip(ids, plain, strict=True)
    }
    for method in args.methods:
        with tempfile.TemporaryDirectory() as folder:
            model, drafts = write(method, Path(folder))
            drafts |= {"method": method, "num_speculative_tokens": 3, "adaptive": False}
            begin = time.perf_counter()
            with LLM(model, speculative_config=drafts, **options) as llm:
                if method in ("eagle", "eagle3", "medusa", "mtp"):
                    drafting = llm.engine.core._drafting
                    drafting._drafter = Knowing(drafting._drafter, answers)
                found = llm.generate(prompts, params)
                stats = llm.stats()
        report(method, plain, found)
        print(
            f"  {stats.num_accepted_tokens} of {stats.num_draft_tokens} drafts accepted, "
            f"{time.perf_counter() - begin:.0f} s",
            flush=True,
        )


class Knowing:
    """A head's drafts, in the place of which right ones and wrong ones are handed on."""

    def __init__(self, drafter: Any, answers: Mapping[tuple[int, ...], Sequence[int]]) -> None:
        self._drafter, self._answers, self._random = drafter, answers, random.Random(3)

    def propose(self, wanted: Sequence[Any]) -> list[list[int]]:
        """Return as many drafts as the head has made."""
        found = []
        for one, made in zip(wanted, self._drafter.propose(wanted), strict=True):
            request = one.request
            ids, first = request.token_ids, request.num_prompt_tokens
            right = self._answers[tuple(ids[:first])][len(ids) - first :][: len(made)]
            drafts = [
                token if self._random.random() < RIGHT else (token + 1) % 99 for token in right
            ]
            found.append(drafts + list(made[len(right) :]))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)


def report(method: str, plain: Sequence[Any], found: Sequence[Any]) -> None:
    """Print how many texts are equal, and what separates the tokens where others part."""
    equal, gaps = 0, []
    for ours, theirs in zip(found, plain, strict=True):
        mine, right = ours.outputs[0].token_ids, theirs.outputs[0].token_ids
        equal += mine == right
        if mine != right:
            place = next(
                i for i, pair in enumerate(zip(mine, right, strict=True)) if len({*pair}) > 1
            )
            first, second = sorted(theirs.outputs[0].logprobs[place].logprobs, reverse=True)[:2]
            gaps.append(first - second)
    apart = f", the others part where logarithms differ by {max(gaps):.1e} at most" if gaps else ""
    print(f"{method}: {equal} of {len(plain)} texts are equal{apart}")


def draw(count: int) -> list[list[int]]:
    """Return prompts, some of which repeat themselves."""
    source = random.Random(7)
    prompts = []
    for number in range(count):
        own = [source.randrange(300, 8000) for _ in range(source.randrange(2, 24))]
        prompts.append(own * (1 + number % 3))
    return prompts


def write(method: str, path: Path) -> tuple[str, dict[str, Any]]:
    """Write what a method needs; return the model, and the method's options."""
    config = json.loads((MODEL / "config.json").read_text())
    if method == "draft_model":
        return str(MODEL), {"model": str(MODEL), "quantization": "int8"}
    if method == "mtp":
        write_glm(path, config)
        return str(path), {}
    if method in ("ngram", "ngram_device", "suffix"):
        return str(MODEL), {}
    shapes, values = head_of(method, config)
    tensors = {name: torch.randn(shape) * shape[-1] ** -0.5 for name, shape in shapes.items()}
    if method == "eagle3":
        tensors["d2t"] = torch.zeros(config["vocab_size"], dtype=torch.int64)
    save(path, config | values, tensors)
    return str(MODEL), {"model": str(path)}


def save(path: Path, config: Mapping[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Write a checkpoint."""
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors")


def layer_of(config: Mapping[str, Any], inputs: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer that attends to vectors of so many numbers."""
    size, inner, head = (config[key] for key in ("hidden_size", "intermediate_size", "head_dim"))
    queries, keys = (config[f"num_{key}_heads"] * head for key in ("attention", "key_value"))
    return {
        "self_attn.q_proj.weight": (queries, inputs),
        "self_attn.k_proj.weight": (keys, inputs),
        "self_attn.v_proj.weight": (keys, inputs),
        "self_attn.o_proj.weight": (size, queries),
        "mlp.gate_proj.weight": (inner, size),
        "mlp.up_proj.weight": (inner, size),
        "mlp.down_proj.weight": (size, inner),
        "post_attention_layernorm.weight": (size,),
    }


def head_of(method: str, config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the shapes of a head's tensors, and what its configuration says of it."""
    size, vocab = config["hidden_size"], config["vocab_size"]
    if method == "medusa":
        shapes: dict[str, tuple[int, ...]] = {}
        for i in range(HEADS):
            shapes |= {
                f"blocks.{i}.layers.0.weight": (size, size),
                f"blocks.{i}.layers.0.bias": (size,),
                f"lm_heads.{i}.weight": (vocab, size),
            }
        values = {"architectures": ["MedusaModel"], "num_heads": HEADS, "num_hidden_layers": 1}
        return shapes, values
    if method == "eagle":
        layer = {f"layers.0.{name}": shape for name, shape in layer_of(config, size).items()}
        shapes = {**layer, "fc.weight": (size, 2 * size)}
        return shapes, {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
    norms = ("midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight", "norm.weight")
    layer = {f"midlayer.{name}": shape for name, shape in layer_of(config, 2 * size).items()}
    shapes = {**layer, **dict.fromkeys(norms, (size,)), "fc.weight": (size, 3 * size)}
    shapes["lm_head.weight"] = (vocab, size)
    values = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
    return shapes, {**values, "draft_vocab_size": vocab, "eagle_aux_hidden_state_layer_ids": TAPPED}


def write_glm(path: Path, config: Mapping[str, Any]) -> None:
    """Write the demo model as a GLM-4.5 whose layers have no experts, and a further layer."""
    tensors = load_file(MODEL / "model.safetensors")
    size, layers = config["hidden_size"], config["num_hidden_layers"]
    last, further = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    own = {name: t.clone() for name, t in tensors.items() if name.startswith(last)}
    tensors |= {name.replace(last, further): tensor for name, tensor in own.items()}
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{further}{norm}.weight"] = torch.ones(size)
    tensors[f"{further}eh_proj.weight"] = torch.randn(size, 2 * size) * size**-0.5
    values = {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "partial_rotary_factor": 1.0,
        "use_qk_norm": True,
        "first_k_dense_replace": layers + 1,
        "num_nextn_predict_layers": 1,
        "moe_intermediate_size": 64,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
    }
    save(path, {**config, **values}, tensors)


if __name__ == "__main__":
    main()
