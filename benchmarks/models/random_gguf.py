"""Writes a GGUF file of random weights: Qwen3's architecture, sizes of a config.json.

    python benchmarks/models/random_gguf.py benchmarks/models/qwen3-0.6b FILE.gguf
        [--kind Q4_K_M] [--vocab-size 151936]

Matrices are blocks of random bits with scales that keep weights small; the embedding, which is the
output matrix too, is Q6_K, as llama.cpp makes it for these kinds. Q4_K_M is Q4_K, with Q6_K for v
and down in half of the layers, as llama.cpp chooses them. Needs the package gguf.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gguf
import numpy as np

#: Values and bytes of a block; where float16 scales lie in it, and what they are.
BLOCKS = {
    "Q4_0": (32, 18, {0: 0.004}),
    "Q4_K": (256, 144, {0: 0.00013, 2: 0.001}),
    "Q2_K": (256, 84, {80: 0.002, 82: 0.002}),
    "IQ2_XXS": (256, 66, {0: 0.0003}),
    "IQ2_XS": (256, 74, {0: 0.0003}),
    "IQ3_XXS": (256, 98, {0: 0.0001}),
    "IQ4_XS": (256, 136, {0: 0.00002}),
    "Q6_K": (256, 210, {208: 0.00001}),
}
#: Suffixes of a layer's matrices, with outputs and inputs by names of sizes.
MATRICES = {
    "attn_q": ("q", "hidden"),
    "attn_k": ("kv", "hidden"),
    "attn_v": ("kv", "hidden"),
    "attn_output": ("hidden", "q"),
    "ffn_gate": ("inner", "hidden"),
    "ffn_up": ("inner", "hidden"),
    "ffn_down": ("hidden", "inner"),
}
NORMS = {"attn_norm": "hidden", "ffn_norm": "hidden", "attn_q_norm": "head", "attn_k_norm": "head"}


def blocks(rng: np.random.Generator, kind: str, rows: int, columns: int) -> np.ndarray:
    """Return a matrix as bytes [rows, bytes of a row]."""
    values, nbytes, scales = BLOCKS[kind]
    made = rng.integers(0, 256, (rows * columns // values, nbytes), dtype=np.uint8)
    for at, scale in scales.items():
        made[:, at : at + 2] = np.float16([scale]).view(np.uint8)
    return made.reshape(rows, -1)


def kind_of(kind: str, name: str, layer: int, num_layers: int) -> str:
    """Return the type of one matrix; more bits go to the first and last layers, and each third."""
    if kind != "Q4_K_M":
        return kind
    eighth = num_layers // 8
    more = not eighth <= layer < 7 * num_layers // 8 or (layer - eighth) % 3 == 2
    return "Q6_K" if more and name in ("attn_v", "ffn_down") else "Q4_K"


def vocabulary(size: int) -> list[str]:
    """Return tokens that differ, among them those of the one merge that there is."""
    return ["t", "1", *(f"t{i}" for i in range(1, size - 1))]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--kind", choices=[*BLOCKS, "Q4_K_M"], default="Q4_0")
    parser.add_argument("--vocab-size", type=int)
    args = parser.parse_args()
    config = json.loads((args.model / "config.json").read_text())
    vocab_size = args.vocab_size or config["vocab_size"]
    head, layers = config["head_dim"], config["num_hidden_layers"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    sizes = {"hidden": config["hidden_size"], "inner": config["intermediate_size"]}
    sizes |= {"head": head, "q": head * heads, "kv": head * kv_heads}
    writer = gguf.GGUFWriter(args.file, "qwen3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(sizes["hidden"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(sizes["inner"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(vocabulary(vocab_size))
    writer.add_token_types([1] * vocab_size)
    writer.add_token_merges(["t 1"])
    writer.add_eos_token_id(1)
    rng = np.random.default_rng(0)

    def add(name: str, kind: str, rows: int, columns: int) -> None:
        known = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(f"{name}.weight", blocks(rng, kind, rows, columns), raw_dtype=known)

    add("token_embd", "Q6_K", vocab_size, sizes["hidden"])
    for i in range(layers):
        for name, (outputs, inputs) in MATRICES.items():
            kind = kind_of(args.kind, name, i, layers)
            add(f"blk.{i}.{name}", kind, sizes[outputs], sizes[inputs])
        for name, size in NORMS.items():
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(sizes[size], np.float32))
    writer.add_tensor("output_norm.weight", np.ones(sizes["hidden"], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
