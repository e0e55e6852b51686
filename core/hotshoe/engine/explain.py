"""What an engine would be made of: decisions and memory, without loading a weight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hotshoe.config import EngineConfig
from hotshoe.engine.setup import prepare
from hotshoe.platform import Change, DeviceFacts
from hotshoe.plugins import PluginManager
from hotshoe.slots import Decision, SampleSpec


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that start-up would decide.

    Attributes:
        memory: Bytes by purpose; `kv_block` is one block over all layers.
    """

    config: EngineConfig
    facts: DeviceFacts
    changes: tuple[Change, ...]
    decisions: tuple[Decision, ...]
    memory: Mapping[str, int]


def explain(config: EngineConfig, plugins: PluginManager | None = None) -> Explanation:
    """Build the model's layers, which choose their operations, and read off what they chose.

    Raises:
        UserError: The engine could not be built as asked.
    """
    setup = prepare(config, plugins)
    facts = setup.selector.facts
    if setup.platform.create_worker(setup.config) is not None:
        return Explanation(setup.config, facts, setup.changes, (), {})
    worker = setup.torch_worker()
    ctx, model = worker.build()
    setup.selector.decide("sample", SampleSpec(model.vocab_size))
    checkpoint = sum(math.prod(e.shape) for e in ctx.weights.expected.values())
    memory = {
        "weights": checkpoint * ctx.torch_dtype.itemsize,
        "kv_block": sum(layer.block_bytes() for layer in ctx.attention_layers),
    }
    decisions = tuple(setup.selector.decisions.values())
    return Explanation(setup.config, facts, setup.changes, decisions, memory)
