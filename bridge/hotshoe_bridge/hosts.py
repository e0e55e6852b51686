"""What of each slot reaches which host, and why the rest does not: one table.

`python -m hotshoe_bridge` prints it, and the page about the bridge is held to it by a test.
"""

from __future__ import annotations

TRANSFORMERS, KERNELS, VLLM, SGLANG = HOSTS = ("transformers", "kernels", "vllm", "sglang")
NO = "no: "
_LATENT = f"{NO}its layers absorb latents in code of their own, around attention"
_ENTRIES = {
    VLLM: f"{NO}its layers compress tokens in code of their own, around attention",
    SGLANG: f"{NO}its layers compress tokens in code of their own, around attention",
    TRANSFORMERS: f"{NO}entries lie in the model's own cache object",
}
_STREAMS = {
    VLLM: f"{NO}its layers mix streams in code of their own",
    SGLANG: f"{NO}its layers mix streams in code of their own",
    TRANSFORMERS: f"{NO}its modules have weights and a result of another form",
}
_STATES = f"{NO}states lie in a cache of the host's, which has a form of its own"
_SEPARATE = f"{NO}it keeps keys and values in separate memory, and slots have them in one cache"
_ROUTED = f"{NO}it chooses experts before a method is called, and the slot chooses them itself"
_RUNTIME = f"{NO}part of the host's own runtime"
_UNWRITTEN = f"{NO}not written yet"

#: Of each slot, how it reaches hosts, or why it does not; a host that is missing has `OTHERWISE`.
REACH: dict[str, dict[str, str]] = {
    "attention": {
        TRANSFORMERS: "implementation `hotshoe` of its attention interface",
        KERNELS: f"{NO}its layers see no cache",
        VLLM: "attention backend `CUSTOM`, which its platform class chooses",
        SGLANG: _SEPARATE,
    },
    "tree_attention": {
        TRANSFORMERS: f"{NO}its attention interface has no trees",
        KERNELS: f"{NO}its layers see no cache",
        VLLM: f"{NO}its trees are of EAGLE, and bring masks of another form",
        SGLANG: _SEPARATE,
    },
    "relative_attention": {
        TRANSFORMERS: f"{NO}its attention interface brings logits of whole texts",
        KERNELS: f"{NO}its layers see no cache",
        VLLM: _UNWRITTEN,
        SGLANG: _SEPARATE,
    },
    "packed_attention": {
        TRANSFORMERS: f"{NO}its attention interface pads requests, and rotates before",
        KERNELS: f"{NO}that library has no such layer",
        VLLM: f"{NO}its encoders rotate before they attend",
        SGLANG: f"{NO}its encoders rotate before they attend",
    },
    "rotary_and_cache": {
        TRANSFORMERS: "writes the blocks that `attention` reads; rotation stays with the model",
        KERNELS: f"{NO}its layers see no cache",
        VLLM: "writes the blocks that `attention` reads; rotation stays with the host",
        SGLANG: _SEPARATE,
    },
    "mla_attention": {
        VLLM: _LATENT,
        SGLANG: _LATENT,
        TRANSFORMERS: f"{NO}its models expand latents before attention",
    },
    "indexer": {
        VLLM: _LATENT,
        SGLANG: _LATENT,
        TRANSFORMERS: f"{NO}its models choose tokens in code of their own",
    },
    "block_indexer": {
        VLLM: f"{NO}its layers choose blocks in code of their own, around attention",
        SGLANG: f"{NO}its layers choose blocks in code of their own, around attention",
        TRANSFORMERS: f"{NO}its models choose blocks in code of their own",
    },
    "sparse_mla_attention": {
        VLLM: _LATENT,
        SGLANG: _LATENT,
        TRANSFORMERS: f"{NO}its models choose tokens in code of their own",
    },
    "compress": _ENTRIES,
    "compressed_attention": _ENTRIES,
    "hyper_connection": _STREAMS,
    "state_space": {
        VLLM: _STATES,
        SGLANG: _STATES,
        TRANSFORMERS: f"{NO}states lie in the model's own cache object",
    },
    "selective_scan": {
        VLLM: _STATES,
        SGLANG: _STATES,
        TRANSFORMERS: f"{NO}states lie in the model's own cache object",
    },
    "rg_lru": {
        VLLM: _STATES,
        SGLANG: _STATES,
        TRANSFORMERS: f"{NO}states lie in the model itself",
    },
    "short_conv": {
        VLLM: _STATES,
        SGLANG: _STATES,
        TRANSFORMERS: f"{NO}states lie in the model's own cache object",
    },
    "gated_delta": {
        VLLM: _STATES,
        SGLANG: _STATES,
        TRANSFORMERS: f"{NO}states lie in the model's own cache object",
    },
    "linear": {
        TRANSFORMERS: "modules of class `torch.nn.Linear`",
        KERNELS: "layer `Linear`",
        VLLM: "methods `hotshoe`, also of quantized checkpoints, `hotshoe_int8`, ...",
        SGLANG: "methods `hotshoe`, also of quantized checkpoints, `hotshoe_int8`, ...",
    },
    "rms_norm": {
        TRANSFORMERS: "modules named RMSNorm, with and without an offset",
        KERNELS: "layers `RMSNorm` and `RMSNormZeroCentered`",
        VLLM: "out-of-tree classes of `RMSNorm` and `GemmaRMSNorm`",
        SGLANG: "hooks on methods of `RMSNorm` and `GemmaRMSNorm`",
    },
    "add_rms_norm": {
        TRANSFORMERS: f"{NO}no module adds and norms at once",
        KERNELS: f"{NO}no layer adds and norms at once",
        VLLM: "the same classes, called with a residual",
        SGLANG: "the same methods, called with a residual",
    },
    "layer_norm": {
        TRANSFORMERS: "modules of class `torch.nn.LayerNorm`",
        VLLM: f"{NO}that class has no out-of-tree form",
        SGLANG: f"{NO}few of its models have one, so nobody has asked",
    },
    "gated_activation": {
        TRANSFORMERS: "within MLPs, where `gated_mlp` is composed",
        VLLM: "out-of-tree class of `SiluAndMul`",
        SGLANG: "hooks on methods of `SiluAndMul`",
    },
    "gated_mlp": {
        TRANSFORMERS: "modules of `gate_proj`, `up_proj`, `down_proj` and an activation",
        VLLM: f"{NO}no class of it is the whole block",
        SGLANG: f"{NO}no class of it is the whole block",
    },
    "decoder_layer": dict.fromkeys(HOSTS, f"{NO}the host's layers call each operation"),
    "model_step": dict.fromkeys(HOSTS, f"{NO}the host's layers call each operation"),
    "moe": {
        TRANSFORMERS: f"{NO}each of its models routes in code of its own",
        VLLM: "the method of experts under the same names, with its routing",
        SGLANG: _ROUTED,
    },
    "embedding": dict.fromkeys(HOSTS, f"{NO}the table stays with the host, and a gather is all"),
    "lora": dict.fromkeys(HOSTS, f"{NO}adapters are the host's"),
    "sample": dict.fromkeys(HOSTS, f"{NO}the host chooses tokens"),
    "transfer": dict.fromkeys(HOSTS, _RUNTIME),
    "graph": dict.fromkeys(HOSTS, _RUNTIME),
    "communicator": dict.fromkeys(HOSTS, _RUNTIME),
}
OTHERWISE = {
    TRANSFORMERS: _UNWRITTEN,
    KERNELS: f"{NO}that library has no such layer",
    VLLM: _UNWRITTEN,
    SGLANG: _UNWRITTEN,
}
#: Which numbers were compared with the host's own, and which were not.
PROVED = {
    TRANSFORMERS: "each module against its own forward, at installation; whole models in tests",
    KERNELS: "the classes alone; not run with that library",
    VLLM: "tokens of three small models in version 0.32 on a CPU, with the bridge and without",
    SGLANG: "the methods alone, with a stand-in of version 0.5.23; not run with that engine",
}


def reach(slot: str, host: str) -> str:
    """Say how a slot reaches a host, or why it does not."""
    return REACH.get(slot, {}).get(host, OTHERWISE[host])
