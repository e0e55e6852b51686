"""The slots: every question that core asks of hardware. Platform packages import this module."""

from hotshoe.slots.base import (
    REFERENCE,
    Candidate,
    Decision,
    Selector,
    Slot,
    Verdict,
    accept,
    refuse,
)
from hotshoe.slots.operations import (
    AddNormOp,
    AttentionMetadata,
    AttentionOp,
    EmbeddingOp,
    GatedActivationOp,
    GraphOp,
    LinearOp,
    NormOp,
    RotaryAndCacheOp,
    SampleOp,
    TransferOp,
)
from hotshoe.slots.specs import (
    PLAIN_LAYOUT,
    AddNormSpec,
    AttentionSpec,
    EmbeddingSpec,
    GatedActivationSpec,
    GraphSpec,
    KVLayout,
    LinearSpec,
    NormSpec,
    QuantSpec,
    RotaryAndCacheSpec,
    SampleSpec,
    TransferSpec,
)

_REFERENCE = "hotshoe.slots.reference"

SLOTS: dict[str, Slot] = {
    slot.name: slot
    for slot in (
        Slot(
            "attention",
            AttentionSpec,
            f"{_REFERENCE}.attention:Attention",
            "paged causal attention of mixed prefill and decode batches",
        ),
        Slot(
            "rotary_and_cache",
            RotaryAndCacheSpec,
            f"{_REFERENCE}.rotary:RotaryAndCache",
            "q/k norm, rotary embedding, write of k and v into the cache",
        ),
        Slot(
            "linear",
            LinearSpec,
            f"{_REFERENCE}.linear:Linear",
            "matrix product with a weight prepared once, plain or quantised",
        ),
        Slot("rms_norm", NormSpec, f"{_REFERENCE}.norm:build_norm", "RMS norm"),
        Slot(
            "add_rms_norm",
            AddNormSpec,
            f"{_REFERENCE}.norm:build_add_norm",
            "residual addition and RMS norm",
        ),
        Slot(
            "gated_activation",
            GatedActivationSpec,
            f"{_REFERENCE}.activation:build",
            "activation of one half times the other half",
        ),
        Slot("embedding", EmbeddingSpec, f"{_REFERENCE}.embedding:build", "embedding gather"),
        Slot("sample", SampleSpec, f"{_REFERENCE}.sampling:build", "choice of the next token"),
        Slot(
            "transfer",
            TransferSpec,
            f"{_REFERENCE}.transfer:Transfer",
            "copies between host and an asynchronous device",
        ),
        Slot(
            "graph",
            GraphSpec,
            f"{_REFERENCE}.graph:Graph",
            "recording and replay of a decode step on an asynchronous device",
        ),
    )
}

__all__ = [
    "PLAIN_LAYOUT",
    "REFERENCE",
    "SLOTS",
    "AddNormOp",
    "AddNormSpec",
    "AttentionMetadata",
    "AttentionOp",
    "AttentionSpec",
    "Candidate",
    "Decision",
    "EmbeddingOp",
    "EmbeddingSpec",
    "GatedActivationOp",
    "GatedActivationSpec",
    "GraphOp",
    "GraphSpec",
    "KVLayout",
    "LinearOp",
    "LinearSpec",
    "NormOp",
    "NormSpec",
    "QuantSpec",
    "RotaryAndCacheOp",
    "RotaryAndCacheSpec",
    "SampleOp",
    "SampleSpec",
    "Selector",
    "Slot",
    "TransferOp",
    "TransferSpec",
    "Verdict",
    "accept",
    "refuse",
]
