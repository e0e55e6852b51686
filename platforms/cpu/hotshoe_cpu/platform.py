"""The CPU platform: what this machine is, which kernels serve it, how many threads they use.

Everything is decided once, before a model is built. Kernels live in the native package and the
candidates' modules; this one only puts them together.
"""

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import hotshoe_native
from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError
from hotshoe.platform import (
    Available,
    Broken,
    Change,
    Detection,
    DeviceFacts,
    MemoryBudget,
    Platform,
)
from hotshoe.slots import Candidate
from hotshoe_cpu.cores import CorePlan, part_of, plan_cores
from hotshoe_cpu.limits import free_memory_bytes, memory_bytes
from hotshoe_cpu.native import FEATURE
from hotshoe_cpu.options import CpuOptions
from hotshoe_cpu.targets import TARGETS

SCORE = 10
BLOCK_SIZE = 32
#: Enough rows for matrix products at full speed; more only make decoding requests wait.
TOKEN_BUDGET = 512
#: Where more are faster: the less time a row's products take, the more reading weights counts.
TOKEN_BUDGETS = {"amx": 1024}
#: Freed memory that stays with the process, for the results of the next step's operations.
KEPT_MEMORY_BYTES = 256 << 20


class CpuPlatform(Platform):
    """x86 and Arm processors, through `hotshoe-native`."""

    name = "cpu"
    targets = TARGETS

    def __init__(self) -> None:
        self._options = CpuOptions()
        self._part = (0, 1)

    def probe(self) -> Detection:
        try:
            hotshoe_native.load()
        except ImportError as error:
            return Broken(f"{error}; reinstall hotshoe-native for this machine", SCORE)
        return Available(SCORE)

    def facts(self) -> DeviceFacts:
        """Describe the processor. Features name every usable build of the kernels (`avx2`), and
        the one that serves this engine (`native:avx2`)."""
        usable = [status.isa for status in hotshoe_native.available() if status.usable]
        return DeviceFacts(
            platform=self.name,
            device="cpu",
            name=processor_name(),
            arch=platform.machine(),
            memory_bytes=memory_bytes(),
            compute_units=self._core_plan().threads,
            features=frozenset([*usable, FEATURE + self._isa()]),
        )

    def _isa(self) -> str:
        return str(hotshoe_native.load(self._options.isa).info()["isa"])

    def candidates(self) -> Sequence[Candidate]:
        from hotshoe_cpu import (
            activation,
            attention,
            communicator,
            embedding,
            graph,
            hyper,
            latent,
            layer_norm,
            linear,
            lora,
            mlp,
            moe,
            norm,
            packed,
            padded,
            relative,
            rotary,
            sampling,
            tree_attention,
        )

        attend = attention.supports, attention.Attention
        embedded = embedding.supports, embedding.Embedding
        gated = activation.supports, activation.GatedActivation
        branching = tree_attention.supports, tree_attention.TreeAttention
        relatives = relative.supports, relative.RelativeAttention
        wide = padded.supports, padded.Attention
        joined = hyper.supports, hyper.HyperConnection
        exchange = communicator.supports, communicator.Communicator
        return (
            Candidate("attention", "native", *attend, layout=attention.declared_layout),
            Candidate("rotary_and_cache", "native", rotary.supports, rotary.RotaryAndCache),
            Candidate("packed_attention", "native", packed.supports, packed.PackedAttention),
            Candidate("tree_attention", "native", *branching),
            Candidate("relative_attention", "native", *relatives),
            Candidate("attention", "padded", *wide, layout=padded.declared_layout),
            Candidate("rotary_and_cache", "padded", padded.supports_writing, padded.RotaryAndCache),
            Candidate("linear", "native", linear.supports, linear.Linear),
            *_over_quantized(),
            Candidate("rms_norm", "native", norm.supports, norm.Norm),
            Candidate("add_rms_norm", "native", norm.supports, norm.AddNorm),
            Candidate("layer_norm", "native", layer_norm.supports, layer_norm.LayerNorm),
            Candidate("gated_activation", "native", *gated),
            Candidate("gated_mlp", "native", mlp.supports, mlp.GatedMlp),
            Candidate("moe", "native", moe.supports, moe.Moe),
            Candidate("lora", "native", lora.supports, lora.Lora, batch_invariant=True),
            Candidate("embedding", "native", *embedded, tolerance=0),
            Candidate("sample", "native", sampling.supports, sampling.Sample),
            *_over_states(),
            Candidate("mla_attention", "native", latent.supports, latent.MlaAttention),
            *_over_chosen(),
            Candidate("hyper_connection", "native", *joined),
            Candidate("graph", "native", graph.supports, graph.Graph),
            Candidate("communicator", "shared_memory", *exchange),
        )

    def resolve(self, config: EngineConfig) -> Sequence[Change]:
        self._options = CpuOptions.from_mapping(config.platform_options)
        try:
            hotshoe_native.load(self._options.isa)
        except ValueError as error:
            raise ConfigError(f"platform_options.isa: {error}") from None
        self._core_plan()
        changes = []
        if config.block_size is None:
            reason = "the CPU kernels' vectors and cache lines"
            changes.append(Change("block_size", BLOCK_SIZE, reason))
        if config.max_num_batched_tokens is None:
            budget = max(TOKEN_BUDGETS.get(self._isa(), TOKEN_BUDGET), config.max_num_seqs)
            reason = "longer steps make first tokens wait and compute no faster"
            changes.append(Change("max_num_batched_tokens", budget, reason))
        return changes

    def take_part(self, rank: int, size: int) -> None:
        """Divide cores, threads and memory."""
        self._part = (rank, size)
        try:
            self._core_plan()
        except ConfigError as error:
            raise ConfigError(
                f"{error}; lower tensor_parallel_size or pipeline_parallel_size, or raise "
                "platform_options.threads"
            ) from None

    def dtype_for(self, checkpoint_dtype: str) -> tuple[str, str]:
        """Compute float16 checkpoints in bfloat16, which has kernels and the same size."""
        if checkpoint_dtype == "float16":
            return "bfloat16", "the checkpoint is float16, which no CPU kernel multiplies"
        return super().dtype_for(checkpoint_dtype)

    def activate(self, config: EngineConfig) -> Mapping[str, object]:
        import torch

        plan = self._core_plan()
        native = hotshoe_native.load(self._options.isa)
        if self._part[1] > 1 and plan.cores:  # a process of its own: the caller's thread too
            os.sched_setaffinity(0, plan.cores)
        try:
            native.set_threads(plan.threads, list(plan.cores))
        except RuntimeError as error:
            raise ConfigError(f"platform_options.threads: {error}; give a smaller number") from None
        native.keep_freed_memory(KEPT_MEMORY_BYTES)
        # PyTorch does no heavy work here, and its own threads would take the kernels' cores.
        torch.set_num_threads(1)
        return {
            "isa": native.info()["isa"],
            "threads": plan.threads,
            "cores": plan.cores,
            "because": plan.reason,
        }

    def memory_budget(self, config: EngineConfig) -> MemoryBudget:
        free = free_memory_bytes()
        share = self._options.memory_fraction
        note = f"{share:.0%} of the {free / 2**30:.1f} GiB that are free"
        parts = self._part[1]
        return MemoryBudget(int(free * share) // parts, note, free // parts)

    def release_memory(self) -> None:
        hotshoe_native.load(self._options.isa).release_freed_memory()

    def _core_plan(self) -> CorePlan:
        try:
            return part_of(plan_cores(self._options.threads, self._options.cores), *self._part)
        except ValueError as error:
            raise ConfigError(f"platform_options: {error}") from None


def processor_name(root: Path = Path("/")) -> str:
    """Return the processor's name as Linux gives it, else its architecture."""
    try:
        lines = (root / "proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _over_quantized() -> Iterator[Candidate]:
    """Yield the candidates of weights that are held otherwise than checkpoints hold them."""
    from hotshoe_cpu import experts, groups, widened

    size, plain = groups.weight_bytes, widened.weight_bytes
    yield Candidate("linear", "groups", groups.supports, groups.Linear, weight_bytes=size)
    yield Candidate("linear", "widened", widened.supports, widened.Linear, weight_bytes=plain)
    rounding = widened.supports_rounding, widened.Rounding
    yield Candidate("linear", "rounding", *rounding, weight_bytes=plain)
    one_by_one = experts.supports, experts.Moe
    yield Candidate("moe", "by_expert", *one_by_one, weight_bytes=experts.weight_bytes)


def _over_states() -> Iterator[Candidate]:
    """Yield the candidates of blocks that keep states."""
    from hotshoe_cpu import gated_delta, rg_lru, selective_scan, short_conv, state_space

    yield Candidate("gated_delta", "native", gated_delta.supports, gated_delta.GatedDelta)
    yield Candidate("rg_lru", "native", rg_lru.supports, rg_lru.RgLru)
    scan = selective_scan.supports, selective_scan.SelectiveScan
    yield Candidate("selective_scan", "native", *scan)
    yield Candidate("short_conv", "native", short_conv.supports, short_conv.ShortConv)
    yield Candidate("state_space", "native", state_space.supports, state_space.StateSpace)


def _over_chosen() -> Iterator[Candidate]:
    """Yield the candidates of sparse attention: what chooses, what is chosen, what reads it."""
    from hotshoe_cpu import compressed, sparse

    yield Candidate("indexer", "native", sparse.supports_choice, sparse.Indexer)
    yield Candidate("block_indexer", "native", sparse.supports_blocks, sparse.BlockIndexer)
    yield Candidate("sparse_mla_attention", "native", sparse.supports, sparse.SparseMlaAttention)
    yield Candidate("compress", "native", compressed.supports, compressed.Compress)
    attend = compressed.supports, compressed.CompressedAttention
    yield Candidate("compressed_attention", "native", *attend)
