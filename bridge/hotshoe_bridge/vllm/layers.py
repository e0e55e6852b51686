"""Norms and the gated activation of vLLM, as out-of-tree classes of its custom operations.

That engine calls such classes only where custom operations are enabled, which they are not while it
compiles models.
"""

from __future__ import annotations

from typing import Any

from hotshoe_bridge import forwards
from hotshoe_bridge.operations import Operations


def register(operations: Operations) -> None:
    """Let these classes stand for that engine's own."""
    from vllm.model_executor.layers import activation, layernorm

    for base, offset in ((layernorm.RMSNorm, 0.0), (layernorm.GemmaRMSNorm, 1.0)):
        made = replaced(base, forwards.norm(offset, operations))
        base.register_oot(_decorated_op_cls=made)
    gated = activation.SiluAndMul
    made = replaced(gated, forwards.silu_and_mul(operations))
    gated.register_oot(_decorated_op_cls=made)


def replaced(base: Any, forward: forwards.Method) -> type:
    """Derive a class that computes the same on every kind of device; plain tensors stay its own."""
    kinds = {name for name in dir(base) if name.startswith("forward_")} | {"forward_oot"}
    methods = dict.fromkeys(kinds - {forwards.NATIVE, "forward_static"}, forward)
    return type(f"Hotshoe{base.__name__}", (base,), methods)
