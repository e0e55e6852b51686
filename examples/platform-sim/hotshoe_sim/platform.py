"""The platform: what the simulated device is, how much memory it has left, and its candidates.

Found everywhere, but chosen by name only. `--platform-options.memory_mib` sets the device's memory.
"""

from collections.abc import Mapping, Sequence

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError
from hotshoe.platform import Available, Change, DeviceFacts, MemoryBudget, Platform
from hotshoe.slots import (
    AttentionSpec,
    Candidate,
    GatedMlpSpec,
    GraphSpec,
    NormSpec,
    TransferSpec,
    Verdict,
    accept,
    refuse,
)

MEMORY_MIB = 1024
#: Left free for the results of a step's operations.
RESERVE_BYTES = 64 << 20


class SimPlatform(Platform):
    """One simulated accelerator."""

    name = "sim"
    asynchronous = True

    def __init__(self) -> None:
        self._memory_bytes = MEMORY_MIB << 20

    def probe(self) -> Available:
        return Available(score=-1)

    def facts(self) -> DeviceFacts:
        return DeviceFacts(
            platform=self.name,
            device="sim",
            name="simulated accelerator",
            arch="sim1",
            memory_bytes=self._memory_bytes,
            compute_units=1,
            features=frozenset({"queue"}),
        )

    def candidates(self) -> Sequence[Candidate]:
        return (
            Candidate("transfer", "queue", judge_queue, "hotshoe_sim.kernels:Transfer"),
            Candidate("graph", "queue", judge_queue, "hotshoe_sim.kernels:Graph"),
            Candidate("attention", "sim", judge_attention, "hotshoe_sim.kernels:Attention"),
            Candidate("rms_norm", "sim", judge_norm, "hotshoe_sim.kernels:build_norm", True),
            Candidate("gated_mlp", "sim", judge_mlp, "hotshoe_sim.kernels:GatedMlp", True),
        )

    def resolve(self, config: EngineConfig) -> Sequence[Change]:
        options = dict(config.platform_options)
        mib = options.pop("memory_mib", MEMORY_MIB)
        if options:
            raise ConfigError(f"platform sim has no option {min(options)!r}; it has memory_mib")
        if not isinstance(mib, int) or mib < 1:
            raise ConfigError(f"platform_options.memory_mib cannot be {mib!r}")
        self._memory_bytes = mib << 20
        return ()

    def take_part(self, rank: int, size: int) -> None:
        """Let every process have a device of its own; they meet in the host's memory."""

    def activate(self, config: EngineConfig) -> Mapping[str, object]:
        from hotshoe_sim import device

        device.MEMORY.capacity_bytes = self._memory_bytes
        return {"memory": f"{self._memory_bytes >> 20} MiB"}

    def memory_budget(self, config: EngineConfig) -> MemoryBudget:
        from hotshoe_sim import device

        free = self._memory_bytes - device.MEMORY.used_bytes - RESERVE_BYTES
        return MemoryBudget(max(free, 0), "what weights leave, but 64 MiB for activations")


def judge_queue(spec: TransferSpec | GraphSpec, facts: DeviceFacts) -> Verdict:
    """Accept any size: work is queued in order, and can be queued again."""
    return accept(10) if "queue" in facts.features else refuse("the device has no queue")


def judge_norm(spec: NormSpec, facts: DeviceFacts) -> Verdict:
    """Accept what the device's one vector unit computes."""
    if spec.quant is not None:
        return refuse("the vector unit quantizes no results")
    return _judge(facts, spec.dtype)


def judge_mlp(spec: GatedMlpSpec, facts: DeviceFacts) -> Verdict:
    """Accept the plain block, all of it at once."""
    if spec.down.weight is not None or spec.gate_up.weight is not None:
        return refuse("the vector unit multiplies no quantized weights")
    if spec.gate_up.bias or spec.down.bias:
        return refuse("the vector unit adds no biases")
    if spec.activation != "silu":
        return refuse(f"the vector unit knows no {spec.activation}")
    return _judge(facts, spec.dtype)


def judge_attention(spec: AttentionSpec, facts: DeviceFacts) -> Verdict:
    """Accept plain attention."""
    if spec.window is not None or spec.softcap is not None or spec.sinks or spec.alibi is not None:
        return refuse("the vector unit knows no windows, soft caps, sinks and slopes")
    if spec.v_head_dim is not None:
        return refuse(f"v_head_dim {spec.v_head_dim} differs from head_dim {spec.head_dim}")
    if spec.kv_dtype != spec.dtype:
        return refuse(f"kv_dtype {spec.kv_dtype} differs from dtype {spec.dtype}")
    return _judge(facts, spec.dtype)


def _judge(facts: DeviceFacts, dtype: str) -> Verdict:
    if facts.arch != "sim1":
        return refuse(f"architecture {facts.arch} is not sim1")
    if dtype not in ("float32", "bfloat16"):
        return refuse(f"element type {dtype} is not float32 or bfloat16")
    return accept(10, "the vector unit")
