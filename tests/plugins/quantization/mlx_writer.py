"""Writes transformers' models as MLX would, from the description of its format; not a test module.

Numbers are packed bit by bit. The model gets the numbers that its file stands for, so that its
logits are the reference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

#: The numbers that four bits stand for, by code. Source: OCP Microscaling Formats 1.0.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def packed(values: np.ndarray, bits: int) -> Tensor:
    """Pack the last axis into 32-bit words, the lowest bits first, and on into the next word."""
    each = values[..., None].astype(np.uint8) >> np.arange(bits, dtype=np.uint8) & 1
    octets = np.packbits(each.reshape(*values.shape[:-1], -1), axis=-1, bitorder="little")
    return torch.from_numpy(octets.view("<u4").copy())


def affine(weight: Tensor, bits: int, size: int, kind=torch.float32) -> tuple[dict, Tensor]:
    """Quantize [..., inputs] by groups; return the parts, and what they stand for in float32."""
    groups = weight.detach().double().unflatten(-1, (-1, size))
    low, high = groups.amin(-1), groups.amax(-1)
    scales, biases = ((high - low) / ((1 << bits) - 1)).clamp(min=1e-7).to(kind), low.to(kind)
    steps = (groups - biases.double()[..., None]) / scales.double()[..., None]
    q = steps.round().clamp(0, (1 << bits) - 1)
    dense = q * scales.double()[..., None] + biases.double()[..., None]
    words = packed(q.flatten(-2).numpy(), bits)
    return {"weight": words, "scales": scales, "biases": biases}, dense.flatten(-2).float()


def floats(weight: Tensor, mode: str) -> tuple[dict, Tensor]:
    """Quantize likewise to floats of four or eight bits; scales are bytes."""
    size = 16 if mode == "nvfp4" else 32
    groups = weight.detach().float().unflatten(-1, (-1, size))
    largest = groups.abs().amax(-1).clamp(min=1e-6)
    if mode == "nvfp4":
        stored = (largest / 6).to(torch.float8_e4m3fn)
        scales, octets = stored.float(), stored.view(torch.uint8)
    else:
        exponents = (largest / (6 if mode == "mxfp4" else 448)).log2().ceil()
        scales, octets = exponents.exp2(), (exponents + 127).to(torch.uint8)
    steps = groups / scales[..., None]
    if mode == "mxfp8":
        numbers = steps.to(torch.float8_e4m3fn)
        dense, codes, bits = numbers.float(), numbers.view(torch.uint8).numpy(), 8
    else:
        codes = np.abs(steps.numpy()[..., None] - E2M1).argmin(-1)
        dense, bits = torch.from_numpy(E2M1[codes]).float(), 4
    words = packed(codes.reshape(*weight.shape), bits)
    return {"weight": words, "scales": octets}, (dense * scales[..., None]).flatten(-2)


def quantized(weight: Tensor, how: dict[str, Any]) -> tuple[dict, Tensor]:
    if how.get("mode", "affine") == "affine":
        return affine(weight, how["bits"], how["group_size"])
    return floats(weight, how["mode"])


def as_mlx(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return tensors under MLX's names, each as a view of the model's, so that it may be set."""
    found = {}
    config = model.config
    for name, tensor in model.state_dict().items():
        tensor = tensor.detach()
        block, _, part = name.rpartition(".")
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if part in ("gate_up_proj", "gate_up_proj_bias") and config.model_type == "gpt_oss":
            rows = tensor if part.endswith("bias") else tensor.mT
            kind = "bias" if part.endswith("bias") else "weight"
            found[f"{block}.gate_proj.{kind}"] = rows[:, ::2]
            found[f"{block}.up_proj.{kind}"] = rows[:, 1::2]
        elif part in ("down_proj", "down_proj_bias") and config.model_type == "gpt_oss":
            kind = "bias" if part.endswith("bias") else "weight"
            found[f"{block}.down_proj.{kind}"] = tensor if part.endswith("bias") else tensor.mT
        elif part == "gate_up_proj":
            gate, up = tensor.chunk(2, 1)
            block = block.removesuffix("experts") + "switch_mlp"
            found |= {f"{block}.gate_proj.weight": gate, f"{block}.up_proj.weight": up}
        elif part == "down_proj":
            found[f"{block.removesuffix('experts')}switch_mlp.down_proj.weight"] = tensor
        elif name.endswith("conv1d.weight"):
            found[name] = tensor.mT
        elif name.endswith("kv_b_proj.weight"):
            heads = tensor.unflatten(0, (config.num_attention_heads, -1))
            keys, values = heads.split([config.qk_nope_head_dim, config.v_head_dim], 1)
            block = block.removesuffix("kv_b_proj")
            found |= {f"{block}embed_q.weight": keys.mT, f"{block}unembed_out.weight": values}
        else:
            found[name] = tensor
    return found


#: Of models whose norms multiply by 1 + w; those of MLX have the 1.
SHIFTED = ("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight")
SHIFTED += ("q_norm.weight", "k_norm.weight")


def write_mlx(model: torch.nn.Module, path: Path, config: dict, how: dict) -> None:
    """Write a model, and give it the numbers of the file.

    Args:
        config: What config.json has; with a `text_config` names have a prefix.
        how: MLX's `quantization`; paths in it have their own. Without bits nothing is quantized.
    """
    prefix = "language_model." if "text_config" in config else ""
    stored = {}
    shifted = config["model_type"].startswith(("qwen3_next", "qwen3_5"))
    for known, tensor in as_mlx(model).items():
        name = prefix + known
        layer, _, part = name.rpartition(".")
        own = how.get(layer, how)
        plain = tensor.dim() < 2 or "conv1d" in name or part != "weight"
        if plain or not own or tensor.shape[-1] % own["group_size"]:
            more = 1.0 if shifted and name.endswith(SHIFTED) else 0.0
            stored[name] = tensor + more
            continue
        parts, dense = quantized(tensor, own)
        tensor.copy_(dense)
        stored |= {f"{layer}.{part}": one for part, one in parts.items()}
    path.mkdir(parents=True, exist_ok=True)
    kept = {name: tensor.clone().contiguous() for name, tensor in stored.items()}
    save_file(kept, path / "model.safetensors", {"format": "mlx"})
    both = {"quantization": how, "quantization_config": how} if how else {}
    (path / "config.json").write_text(json.dumps(config | both))
