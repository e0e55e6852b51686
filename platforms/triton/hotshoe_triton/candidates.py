"""The candidates that platforms driving their GPUs through `torch.cuda` share: one line each.

A platform adds its own, and names what its vendor calls otherwise. The module imports no torch;
`shared` does, and is called once an engine or its explanation is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hotshoe.slots import Candidate

#: Claims of `Candidate.batch_invariant`.
INVARIANT = True


def shared(graphs: str, collectives: str, build_linear: Callable[..., Any]) -> Sequence[Candidate]:
    """List them.

    Args:
        graphs: What recordings are called here, such as "cuda_graph".
        collectives: What the library of collectives is called here; PyTorch calls it nccl.
        build_linear: The platform's class over `hotshoe_triton.library`.
    """
    from hotshoe_triton import (
        activation,
        attention,
        communicator,
        embedding,
        graph,
        invariant,
        linear,
        norm,
        rotary,
        sampling,
        transfer,
    )

    alone, layout = partial(attention.Attention, alone=True), attention.declared_layout
    nccl = communicator.supports_backend("nccl"), communicator.build_with("nccl")
    return (
        Candidate("attention", "triton", attention.supports, attention.Attention, layout=layout),
        Candidate("attention", "triton_alone", invariant.attention, alone, INVARIANT, layout),
        Candidate("rotary_and_cache", "triton", rotary.supports, rotary.RotaryAndCache, INVARIANT),
        Candidate("rms_norm", "triton", norm.supports, norm.build_norm, INVARIANT),
        Candidate("add_rms_norm", "triton", norm.supports, norm.build_add_norm, INVARIANT),
        Candidate("gated_activation", "triton", activation.supports, activation.build, INVARIANT),
        Candidate("embedding", "triton", embedding.supports, embedding.Embedding, INVARIANT),
        Candidate("sample", "triton", sampling.supports, sampling.Sample, INVARIANT),
        Candidate("graph", graphs, graph.supports, graph.Graph, INVARIANT),
        Candidate("transfer", "pinned", transfer.supports, transfer.Transfer, INVARIANT),
        Candidate("communicator", collectives, *nccl),
        Candidate("linear", "streaming", linear.supports, build_linear),
        Candidate("linear", "one_tile", invariant.linear, invariant.Linear, INVARIANT),
    )
