"""What decides the bits of an engine's results, as lines, and the hash of these.

Two engines of one hash, with equal weights, give equal tokens for equal requests: with
`--batch-invariant` whatever else runs, otherwise where steps hold the same. A candidate that claims
the reference's bits counts as the reference.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Iterable, Mapping, Sequence

from hotshoe import __version__
from hotshoe.config import ResolvedConfig
from hotshoe.platform import DeviceFacts
from hotshoe.slots import REFERENCE, Candidate, Decision

FIELDS = (
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "tensor_parallel_size",
    "enable_expert_parallel",
    "state_dtype",
    "conv_state_dtype",
    "speculative_config",
    "platform_options",
    "batch_invariant",
)
#: How steps are cut, which batch-invariant results do not depend on.
STEPS = (
    "block_size",
    "max_num_batched_tokens",
    "max_num_seqs",
    "enable_prefix_caching",
    "async_scheduling",
    "enforce_eager",
)
#: They move what others have computed.
MOVERS = ("transfer", "graph")


def numerics(
    config: ResolvedConfig,
    facts: DeviceFacts,
    decisions: Iterable[Decision],
    asked: Mapping[str, Candidate],
) -> tuple[str, ...]:
    """Return a line for each thing that decides bits, always in the same order."""
    names = FIELDS if config.batch_invariant else FIELDS + STEPS
    computed = sorted(_line(d, asked) for d in decisions if d.slot not in MOVERS)
    return (
        f"hotshoe {__version__}",
        f"torch {importlib.metadata.version('torch')}",
        f"device {facts.arch} {facts.compute_units} {' '.join(sorted(facts.features))}",
        *(f"{name} {getattr(config, name)}" for name in names),
        *dict.fromkeys(computed),
    )


def numerics_hash(lines: Sequence[str]) -> str:
    """Return the hash by which engines are compared."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _line(decision: Decision, asked: Mapping[str, Candidate]) -> str:
    candidate = asked.get(f"{decision.slot}/{decision.chosen}")
    who = decision.chosen
    if candidate is not None:
        own = f"{candidate.name} of {candidate.package}, tolerance {candidate.tolerance:g}"
        who = own if candidate.tolerance else REFERENCE
    return f"{decision.slot} {decision.spec}: {who}"
