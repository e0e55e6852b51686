"""xLSTM: layers of matrix memory (mLSTM) and an MLP each, without attention.

Defaults are those of transformers' xLSTMConfig.
"""

from collections.abc import Mapping
from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import DecoderSpec, LayerSpec, MemoryBlock, WeightNames
from hotshoe_models.values import flag, number, optional_number, refuse, with_defaults

DEFAULTS = {
    "vocab_size": 50304,
    "hidden_size": 4096,
    "embedding_dim": None,
    "num_hidden_layers": 32,
    "num_blocks": None,
    "num_heads": 8,
    "use_bias": False,
    "add_out_norm": True,
    "norm_eps": 1e-6,
    "qk_dim_factor": 0.5,
    "v_dim_factor": 1.0,
    "ffn_proj_factor": 2.667,
    "ffn_round_up_to_multiple_of": 64,
    "gate_soft_cap": 15.0,
    "output_logit_soft_cap": 30.0,
    "weight_mode": "single",
    "tie_word_embeddings": False,
}
#: Keys, and others that say the same.
ALIKE = {"hidden_size": "embedding_dim", "num_hidden_layers": "num_blocks"}
#: Above, weights of tokens might leave float32.
MOST_CAP = 30.0
#: More than any model has.
MOST_CHANNELS = 2**24
#: Names of matrices within a layer: of the memory, of its gates and of the MLP.
MATRICES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "single": (
        ("q", "k", "v", "ogate_preact"),
        ("igate_preact", "fgate_preact"),
        ("ffn.proj_up_gate", "ffn.proj_up"),
    ),
    "fused": (("qkv_opreact",), ("ifgate_preact",), ("ffn.proj_up_gate_z",)),
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build xLSTMForCausalLM."""
    config = with_defaults(_resolved(config), DEFAULTS)
    mode = config.get("weight_mode")
    if not isinstance(mode, str) or mode not in MATRICES:
        raise refuse(config, "weight_mode", f"knows only {' and '.join(MATRICES)}")
    if flag(config, "use_bias"):
        raise refuse(config, "use_bias", "has no biases but those of its gates")
    if not flag(config, "add_out_norm"):
        raise refuse(config, "add_out_norm", "norms what its last layer puts out")
    cap = number(config, "gate_soft_cap")
    if cap > MOST_CAP:
        raise refuse(config, "gate_soft_cap", f"needs a cap of at most {MOST_CAP:g}")
    projections, gates, gate_up = MATRICES[mode]
    names = WeightNames(
        embedding="backbone.embeddings",
        final_norm="backbone.out_norm",
        layer="backbone.blocks.{}.",
        input_norm="norm_mlstm",
        mlp_norm="norm_ffn",
        gate_up=gate_up,
        down="ffn.proj_down",
    )
    step = config.size("ffn_round_up_to_multiple_of")
    spec = DecoderSpec(
        vocab_size=config.size("vocab_size"),
        hidden_size=config.size("hidden_size"),
        intermediate_size=int((_times(config, "ffn_proj_factor") + step - 1) // step) * step,
        layers=(LayerSpec(None, mixer="memory"),) * config.size("num_hidden_layers"),
        norm_eps=number(config, "norm_eps"),
        tied=flag(config, "tie_word_embeddings"),
        num_heads=config.size("num_heads"),
        head_dim=_head_dim(config, "v_dim_factor"),
        logits_softcap=optional_number(config, "output_logit_soft_cap"),
        memory=MemoryBlock(
            key_dim=_head_dim(config, "qk_dim_factor"),
            gate_cap=cap,
            name="mlstm_layer",
            projections=projections,
            gates=gates,
            norm="multihead_norm",
            out="out_proj",
        ),
        names=names,
    )
    return DenseDecoder(spec, ctx)


def _resolved(config: ModelConfig) -> ModelConfig:
    """Return the configuration with one value for keys that say the same."""
    values = dict(config.values)
    for name, other in ALIKE.items():
        for key in (name, other):
            if values.get(key, 0) is None:
                del values[key]
        if other in values and values.setdefault(name, values[other]) != values[other]:
            raise refuse(config, other, f"has a {name} of {values[name]}, which is the same")
    return replace(config, values=values)


def _times(config: ModelConfig, factor: str) -> float:
    """Return the hidden size times a factor."""
    found = config.size("hidden_size") * number(config, factor)
    if found > MOST_CHANNELS:
        raise refuse(config, factor, f"has at most {MOST_CHANNELS} channels")
    return found


def _head_dim(config: ModelConfig, factor: str) -> int:
    """Return channels of a head, of the hidden size times a factor."""
    channels, heads = int(_times(config, factor)), config.size("num_heads")
    if not channels or channels % heads:
        raise refuse(config, factor, f"has {channels} channels to divide among {heads} heads")
    return channels // heads
