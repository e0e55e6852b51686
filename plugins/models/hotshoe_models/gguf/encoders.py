"""What config.json would hold of encoders, and how files say that vectors are made.

Source: see `hybrids`.
"""

from __future__ import annotations

from hotshoe_models.gguf import dense, mixtures
from hotshoe_models.gguf.dense import Values
from hotshoe_models.gguf.family import Family, Rows
from hotshoe_models.gguf.hybrids import has
from hotshoe_models.gguf.keys import CONVERTED
from hotshoe_models.gguf.metadata import Metadata
from hotshoe_models.gguf.names import BOTH, GEMMA_NAMES

POOLING = "pooling_type"
#: By the number in files, of which 0 is none and 4 scores pairs of texts.
POOLINGS = {1: "mean", 2: "cls", 3: "last"}
#: Tensors of classes and of matrices behind the pooling.
HEADS = ("cls", "dense_2", "dense_3")


def pooling(meta: Metadata) -> Values:
    """Return how the model makes one vector of a text; nothing where the file does not say.

    Raises:
        CheckpointError: It scores pairs of texts, or does something unknown.
    """
    number = meta.get(POOLING, 0)
    if number not in (0, *POOLINGS):
        raise meta.refuse(f"{meta.arch}.{POOLING}", "but read are 1 (mean), 2 (cls) and 3 (last)")
    return {"pooling": POOLINGS[number]} if number else {}


def _checked(meta: Metadata) -> Values:
    """Return keys that all have.

    Raises:
        CheckpointError: The file has matrices behind the pooling.
    """
    for head in HEADS:
        if f"{head}.weight" in meta.tensors:
            raise meta.refuse("general.architecture", f"which is not read with {head}.weight")
    return {"sep_token_id": meta.token_id("seperator"), "pad_token_id": meta.token_id("padding")}


def bert(meta: Metadata) -> Values:
    """RoBERTa is called the same; its table of positions has lost the rows that no token has."""
    types = meta.shape("token_types.weight")[0] if "token_types.weight" in meta.tensors else 1
    return {**_checked(meta), "type_vocab_size": types}


def jina(meta: Metadata) -> Values:
    """Return keys of Jina's BERT, whose gates and ups newer files have in one matrix.

    Raises:
        CheckpointError: They are apart, or heads have norms.
    """
    for part in ("ffn_gate", "attn_q_norm", "attn_norm_2"):
        if has(meta, f"{part}.weight"):
            raise meta.refuse("general.architecture", f"which is not read with {part}.weight")
    return {**bert(meta), "position_embedding_type": "alibi", "feed_forward_type": "geglu"}


def jina3(meta: Metadata) -> Values:
    """Return keys of Jina Embeddings 3 without adapters, which converters put into files of their
    own."""
    rope = dense.rotation_of(meta, dense.head_size(meta))["rope_parameters"]
    return {
        **bert(meta),
        "rope_parameters": {**rope, "rope_theta": meta.number("rope.freq_base", JINA_THETA)},
    }


def nomic_moe(meta: Metadata) -> Values:
    """Return keys of Nomic's second BERT. Files lack the bias behind experts."""
    found = mixtures.experts(meta)
    return {
        **bert(meta),
        CONVERTED: True,
        "num_experts": found["num_experts"],
        "moe_top_k": found["num_experts_per_tok"],
        "moe_every_n_layers": meta.integer("moe_every_n_layers"),
    }


def neobert(meta: Metadata) -> Values:
    """Return the size of MLPs, of which a file has two thirds."""
    return {**_checked(meta), "intermediate_size": -(-3 * meta.integer("feed_forward_length") // 2)}


def t5(meta: Metadata) -> Values:
    """Return keys of T5's encoder. Files leave out that gates are of GELU, where there are any."""
    return {
        **_checked(meta),
        "d_model": meta.integer("embedding_length"),
        "d_kv": dense.head_size(meta),
        "d_ff": meta.integer("feed_forward_length"),
        "num_layers": meta.integer("block_count"),
        "num_heads": meta.integer("attention.head_count"),
        "relative_attention_num_buckets": meta.integer("attention.relative_buckets_count"),
        "feed_forward_proj": "gated-gelu" if has(meta, "ffn_gate.weight") else "relu",
    }


def modern_bert(meta: Metadata) -> Values:
    return {
        **_checked(meta),
        "local_attention": meta.integer("attention.sliding_window"),
        "global_attn_every_n_layers": meta.integer("attention.sliding_window_pattern", 3),
        "hidden_activation": meta.text("hidden_activation", meta.text("hidden_act", "gelu")),
        "global_rope_theta": meta.number("rope.freq_base", 160_000.0),
        "local_rope_theta": meta.number("rope.freq_base_swa", 10_000.0),
        "rope_parameters": None,
        "norm_bias": has(meta, "output_norm.bias"),
    }


def gemma(meta: Metadata) -> Values:
    """Return keys of EmbeddingGemma."""
    return {**_checked(meta), **dense.gemma3(meta), "use_bidirectional_attention": True}


_EMBEDDINGS = "embeddings."
OUTER = {
    "token_embd": f"{_EMBEDDINGS}word_embeddings",
    "position_embd": f"{_EMBEDDINGS}position_embeddings",
    "token_types": f"{_EMBEDDINGS}token_type_embeddings",
    "token_embd_norm": f"{_EMBEDDINGS}LayerNorm",
}
#: Of Jina Embeddings 3, where a file gives no base of rotations.
JINA_THETA = 20_000.0
_SELF = "attention.self."
NAMES = {
    "attn_qkv": f"{_SELF}query{BOTH}key{BOTH}value",
    "attn_q": f"{_SELF}query",
    "attn_k": f"{_SELF}key",
    "attn_v": f"{_SELF}value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
JINA_NAMES = {
    **NAMES,
    "ffn_up": "mlp.gated_layers",
    "ffn_down": "mlp.wo",
    "layer_output_norm": "mlp.layernorm",
}
NOMIC_OUTER = {**OUTER, "token_embd_norm": "emb_ln"}
NOMIC_NAMES = {
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.out_proj",
    "attn_output_norm": "norm1",
    "ffn_gate": "mlp.fc12",
    "ffn_up": "mlp.fc11",
    "ffn_down": "mlp.fc2",
    "layer_output_norm": "norm2",
}
NOMIC_MOE_NAMES = {
    **NOMIC_NAMES,
    "ffn_up": "mlp.fc1",
    "ffn_gate_inp": "mlp.router.layer",
    "ffn_up_exps": "mlp.experts.mlp.{}.w1",
    "ffn_down_exps": "mlp.experts.mlp.{}.w2",
}
JINA3_NAMES = {
    **NOMIC_NAMES,
    "attn_qkv": "mixer.Wqkv",
    "attn_output": "mixer.out_proj",
    "ffn_up": "mlp.fc1",
}
NEO_OUTER = {"token_embd": "model.encoder", "enc.output_norm": "model.layer_norm"}
NEO_NAMES = {
    "attn_norm": "attention_norm",
    "attn_qkv": "qkv",
    "attn_output": "wo",
    "ffn_norm": "ffn_norm",
    "ffn_up": "ffn.w12",
    "ffn_down": "ffn.w3",
}
T5_OUTER = {"token_embd": "shared", "enc.output_norm": "encoder.final_layer_norm"}
_T5, _T5_MLP = "layer.0.SelfAttention.", "layer.1.DenseReluDense."
T5_NAMES = {
    "attn_norm": "layer.0.layer_norm",
    **{f"attn_{part}": f"{_T5}{part}" for part in ("q", "k", "v", "o")},
    "attn_rel_b": f"{_T5}relative_attention_bias",
    "ffn_norm": "layer.1.layer_norm",
    "ffn_up": f"{_T5_MLP}wi",
    "ffn_down": f"{_T5_MLP}wo",
}
T5_GATES = {"ffn_gate": f"{_T5_MLP}wi_0", "ffn_up": f"{_T5_MLP}wi_1"}
MODERN_OUTER = {
    "token_embd": f"{_EMBEDDINGS}tok_embeddings",
    "token_embd_norm": f"{_EMBEDDINGS}norm",
    "output_norm": "final_norm",
}
MODERN_NAMES = {
    "attn_norm": "attn_norm",
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.Wo",
    "ffn_norm": "mlp_norm",
    "ffn_up": "mlp.Wi",
    "ffn_down": "mlp.Wo",
}


def sizes(meta: Metadata) -> list[Rows]:
    """Return the rows of each layer's q, k and v."""
    hidden = meta.integer("embedding_length")
    return [(hidden, hidden, hidden)] * meta.integer("block_count")


FAMILIES = {
    "bert": Family("BertModel", bert, NAMES, outer=OUTER, layer="encoder.layer.{}.", parted=sizes),
    "eurobert": Family("EuroBertModel", _checked),
    "gemma-embedding": Family("Gemma3TextModel", gemma, GEMMA_NAMES, norm_offset=1.0),
    "jina-bert-v2": Family(
        "JinaBertModel", jina, JINA_NAMES, outer=OUTER, layer="encoder.layer.{}.", parted=sizes
    ),
    "jina-bert-v3": Family(
        "JinaEmbeddingsV3Model", jina3, JINA3_NAMES, outer=NOMIC_OUTER, layer="encoder.layers.{}."
    ),
    "llama-embed": Family("LlamaBidirectionalModel", _checked, pairs=True),
    "modern-bert": Family(
        "ModernBertModel", modern_bert, MODERN_NAMES, outer=MODERN_OUTER, layer="layers.{}."
    ),
    "neo-bert": Family(
        "NeoBERT", neobert, NEO_NAMES, outer=NEO_OUTER, layer="model.transformer_encoder.{}."
    ),
    "nomic-bert": Family(
        "NomicBertModel", bert, NOMIC_NAMES, outer=NOMIC_OUTER, layer="encoder.layers.{}."
    ),
    "t5encoder": Family(
        "T5EncoderModel",
        t5,
        T5_NAMES,
        outer=T5_OUTER,
        layer="encoder.block.{}.",
        instead={"ffn_gate.weight": T5_GATES},
    ),
}
MIXTURES = {
    "nomic-bert-moe": Family(
        "NomicBertModel", nomic_moe, NOMIC_MOE_NAMES, outer=NOMIC_OUTER, layer="encoder.layers.{}."
    )
}
