"""Core's worker: builds a model on a platform's components and runs its steps in this process."""

from __future__ import annotations

import gc
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hotshoe.config import ResolvedConfig
from hotshoe.errors import EngineError, HotshoeError, MemoryLimitError, RequestError
from hotshoe.executor import KVBlocks, KVDescriptor, WorkerInfo
from hotshoe.executor.caches import check_caches
from hotshoe.foreign import cause_of, foreign
from hotshoe.layers import BuildContext, WeightFormat, allocate_caches, assign_views
from hotshoe.layers.cache import free_caches, share_keys
from hotshoe.layers.named import follow
from hotshoe.layers.offload import offload_of
from hotshoe.layers.weights import HOST
from hotshoe.loader import Target, load_weights, update_weights
from hotshoe.loader.sources import Weights, source_of
from hotshoe.models import ModelConfig
from hotshoe.models.base import GENERATE, DraftHead, Model, ModelBuilder, class_pooling, step_token
from hotshoe.models.quantization import stored_quantization
from hotshoe.platform import MemoryBudget, Platform, Rehearsing
from hotshoe.plugins.platforms import blaming, checked
from hotshoe.runner.adapters import adapter_table, check_model, load_adapter, required
from hotshoe.runner.balance import balance_of
from hotshoe.runner.checks import ResultChecks, held_bytes
from hotshoe.runner.granted import check_device, enough_memory, stay_in_files
from hotshoe.runner.heads import head_of, load_beside, on_device, wanted_further
from hotshoe.runner.kv import cache_parts, converted, copy_blocks, read_blocks, write_blocks
from hotshoe.runner.limits import MakeProcessors, Operations, RunnerLimits, Search, no_processors
from hotshoe.runner.peers import Peers, check_divided, entering_size, group_of
from hotshoe.runner.recording import sizes_of
from hotshoe.runner.rehearsal import SMALLEST, Unrecorded, largest_step, mixed_steps, rehearse
from hotshoe.runner.resting import Resting
from hotshoe.runner.runner import Runner
from hotshoe.runner.running import RunningStep, Steps, too_early
from hotshoe.runner.states import described, draft_options
from hotshoe.slots import (
    GraphOp,
    GraphSpec,
    Rendezvous,
    SampleSpec,
    Selector,
    TransferOp,
    TransferSpec,
)
from hotshoe.slots.graph import recordable
from hotshoe.slots.reference.graph import Graph
from hotshoe.slots.reference.transfer import Transfer
from hotshoe.types import CacheLayout, StepPlan
from hotshoe.types.cache import QUANTIZED, CacheSpec
from hotshoe.types.layout import lay_out

if TYPE_CHECKING:
    from hotshoe.runner.profiler import Profiler

#: The engine starts a step before it has read the last one's result; a pipeline may have more.
STEPS_IN_FLIGHT = 2
DIGEST_LENGTH = 16
#: Of an entry in the table of all requests' tokens.
TOKEN_BYTES = 4
GIB = 2**30


class TorchWorker:
    """See `hotshoe.executor.Worker`.

    Args:
        config: Resolved: no None where a step needs a value.
        model_config: The model directory.
        platform: Chosen, not yet activated.
        selector: Over the platform's candidates.
        builder: The architecture's builder.
        format: How the checkpoint stores matrices.
        rendezvous: Which of several ranks this is, and where they meet; None for the only one.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        model_config: ModelConfig,
        platform: Platform,
        selector: Selector,
        builder: ModelBuilder,
        format: WeightFormat,
        rendezvous: Rendezvous | None = None,
    ) -> None:
        self._config = config
        self._model_config = model_config
        self._platform = platform
        self._selector = selector
        self._builder = builder
        self._format = format
        self._rendezvous = rendezvous
        self._phases: dict[str, float] = {}
        self._context: BuildContext | None = None
        self._model: Model | None = None
        self._head: DraftHead | None = None
        self._ops: Operations | None = None
        #: See `hotshoe.executor.Worker.execute`.
        self.execute: Callable[[StepPlan], RunningStep] = too_early
        self._guard = foreign(self._blame, (HotshoeError,))
        self._group = partial(group_of, selector, rendezvous)
        self._mesh = config.mesh_at(0 if rendezvous is None else rendezvous.rank)
        self._peers = Peers()
        self._specs: list[CacheSpec] | None = None
        self._first_layer = 0
        self._profiler: Profiler | None = None
        self._resting: Resting | None = None
        self._rested: GraphOp | None = None
        self._graph: GraphSpec | None = None
        self._checks = ResultChecks(selector, config.check_candidates)
        self.make_processors: MakeProcessors = no_processors  # of logits, by plugins
        self.search: Search | None = None  # for drafts, on the device, by a plugin

    def load(self) -> WorkerInfo:
        with self._phase("activate platform"), blaming(self._platform.name):
            report = dict(self._platform.activate(self._config))
            check_device(self._platform.name, self._selector.facts.device)
        with self._phase("build model"):
            ctx, model = self.build()
            known = (self._config, self._platform.asynchronous, ctx.waits)
            hindrance = ""
            if GENERATE in model.tasks:  # recorded steps end in logits
                self._graph, hindrance = recordable(self._selector, *known)
            self._ops = self._operations(ctx, model.vocab_size)
            self._resting = Resting(self._ops.transfer, changing=self._config.enable_eplb)
            self._check_memory(ctx)
        self._peers = Peers(self._mesh, ctx.communicator, self._group(self._mesh.pp_ranks))
        if self._rendezvous is not None:
            with self._phase("meet other ranks"):
                self._peers.open(self._rendezvous)
                self._peers.check_offload(ctx)
                own = [layer.cache_spec for layer in ctx.cache_layers]
                self._specs, self._first_layer = self._peers.all_specs(own, ctx.device)
        with self._phase("load weights"), torch.inference_mode():
            self._load_weights(ctx, self._ops.transfer)
            report |= ctx.offload.report() if ctx.offload is not None else {}
            weight_bytes = sum(held_bytes(self._selector, say) for say in ctx.weight_bytes)
        self._context, self._model = ctx, model
        self._peers.wait(ctx.device)  # others may still be taking memory
        if isinstance(self._platform, Rehearsing):
            quiet, rehearsal = self._peers.quiet(), self._platform.rehearsal()
            with self._phase("compile kernels"), quiet, rehearsal as lacks:
                rehearse(self._probing_runner(Unrecorded()), self._config, lacks)
            free_caches(ctx.cache_layers)
            self._platform.release_memory()
        if self._platform.measures_memory:
            with self._phase("measure memory"):
                self._measure(ctx)
        budget = self._budget()
        return WorkerInfo(
            vocab_size=model.vocab_size,
            tasks=tuple(sorted(model.tasks)),
            hidden_size=model.hidden_size,
            class_pooling=class_pooling(model),
            step_token=step_token(model),
            loras_ahead=0 if ctx.adapters is None else ctx.adapters.limits.ahead,
            block_bytes=sum(layer.cache_spec.block_bytes for layer in ctx.cache_layers),
            caches=self.layout(ctx),
            cache_budget_bytes=budget.available_bytes,
            budget_note=budget.note,
            free_bytes=budget.free_bytes,
            weight_bytes=weight_bytes,
            decisions=tuple(self._selector.decisions.values()),
            phases=self._phases,
            report=report | ctx.weights.notice() | ({"graphs": hindrance} if hindrance else {}),
        )

    def _load_weights(self, ctx: BuildContext, transfer: TransferOp) -> None:
        if ctx.adapters is not None:
            ctx.adapters.device.write()
        config, place = self._config, self._model_config.file or self._model_config.path
        # Ranks read their parts alone, and what stays on the host is read there.
        alone = self._rendezvous is None and ctx.offload is None
        ahead = alone and torch.device(ctx.device) != HOST
        target = Target(ctx.device, transfer if ahead else None)
        how = (config.load_format, ctx.torch_dtype, config.seed, target, config.check_weights)
        load_weights(ctx.weights, place, *how)
        load_beside(ctx, config)

    @torch.inference_mode()
    def build(self) -> tuple[BuildContext, Model]:
        """Build the model's layers, which choose their operations; no weight is loaded.

        Raises:
            ConfigError: They cannot be divided as asked.
        """
        config = self._config
        self._selector.uses.clear()  # of a model that was built before, and slept
        ctx = BuildContext(
            selector=self._selector,
            dtype=config.dtype,
            kv_dtype=QUANTIZED.get(config.kv_cache_dtype, config.kv_cache_dtype),
            **draft_options(config),
            block_size=config.block_size,
            max_model_len=config.max_model_len,
            format=self._format,
            rank=self._mesh.tp.rank,
            size=self._mesh.tp.size,
            communicator=self._group(self._mesh.tp_ranks),
            experts=self._mesh.ep,
            redundant_experts=config.num_redundant_experts if config.enable_eplb else None,
            stage=self._mesh.pp,
            stage_layers=tuple(config.pipeline_layers),
            adapters=adapter_table(config, self._selector.judged.device, self._free_bytes),
            further=wanted_further(config),
            offload=offload_of(config, self._selector.judged.device),
        )
        follow(self._format, ctx.weights)
        ctx.weights.quantized = stored_quantization(self._model_config) is not None
        model = self._builder(self._model_config, ctx)
        check_divided(ctx, self._model_config.architecture)
        if ctx.adapters is not None:
            check_model(ctx.adapters, model, self._model_config, self._mesh.pp.size == 1)
        self._head = head_of(model, ctx, self._model_config)
        if ctx.offload is not None:
            ctx.offload.plan(alone=self._mesh.pp.size == 1)
        return ctx, model

    def _check_memory(self, ctx: BuildContext) -> None:
        """Refuse, before any is taken, weights and tables that the device could not hold.

        Raises:
            MemoryLimitError: Even the least that they can take is too much.
        """
        config, selector, name = self._config, self._selector, self._selector.facts.name
        free = self._free_bytes()
        weights = selector.matrix_bytes() - (ctx.offload.saved_bytes if ctx.offload else 0)
        stay = stay_in_files(config.load_format, self._model_config.dtype, ctx)
        weights += 0 if stay else selector.table_bytes()
        weights += 0 if ctx.adapters is None else ctx.adapters.device.unwritten_bytes
        if weights > free:
            what = "the weights" if ctx.adapters is None else "the weights and places of adapters"
            raise MemoryLimitError(
                f"{what} take {weights / GIB:.1f} GiB or more, but {name} has "
                f"{free / GIB:.1f} GiB for them; free memory, or use a smaller model, "
                "--quantization, or several devices (--tensor-parallel-size)"
            )
        tables = config.max_num_seqs * config.max_model_len * TOKEN_BYTES
        if weights + tables > free:
            raise MemoryLimitError(
                f"the tokens of {config.max_num_seqs} requests of {config.max_model_len} take "
                f"{tables / GIB:.1f} GiB beside the weights' {weights / GIB:.1f}, but {name} has "
                f"{free / GIB:.1f} GiB for them; lower --max-num-seqs or --max-model-len"
            )

    def _free_bytes(self) -> int:
        """Return what the device has, less what others took where that is known."""
        memory = self._selector.facts.memory_bytes
        if self._platform.measures_memory or self._selector.facts.device == "meta":
            return memory
        free = self._budget().free_bytes
        return memory if free is None else min(free, memory)

    def _budget(self) -> MemoryBudget:
        with blaming(self._platform.name):
            budget = self._platform.memory_budget(self._config)
            return checked(budget, MemoryBudget, "memory_budget() returned")

    def _operations(self, ctx: BuildContext, vocab_size: int) -> Operations:
        """Choose what the runner itself calls. A synchronous device needs no help with overlap."""
        choose, facts = self._selector.choose, self._selector.facts
        sample = choose("sample", SampleSpec(vocab_size))
        spec = TransferSpec(self._max_steps, self._config.fetches)
        overlaps = self._platform.asynchronous
        transfer = choose("transfer", spec) if overlaps else Transfer(spec, facts)
        if ctx.offload is not None:
            ctx.offload.begin(transfer)
        nothing = GraphSpec(self._config.max_num_seqs)
        graph = choose("graph", self._graph) if self._graph else Graph(nothing, facts)
        processors = self.make_processors(vocab_size, torch.device(facts.device))
        return Operations(sample, transfer, self._rested or graph, processors, self.search)

    def _measure(self, ctx: BuildContext) -> None:
        """Run the largest step over a cache of one block, so that the platform sees its peak."""
        self._probing_runner().warm_up(largest_step(self._config))
        free_caches(ctx.cache_layers)

    def _probing_runner(self, graph: GraphOp | None = None) -> Runner:
        """Return a runner over a cache of one block."""
        assert self._context is not None
        return self._make_runner([0] * len(self.layout(self._context).pools), graph)

    @property
    def _max_steps(self) -> int:
        return max(STEPS_IN_FLIGHT, self._config.num_steps_in_flight)

    def layout(self, ctx: BuildContext) -> CacheLayout:
        """Return the cache groups of a model that was built: those of all stages, with the layers
        and the bytes of this one.

        Raises:
            ConfigError: A layer's cache cannot be had, or not with this block size.
        """
        config = self._config
        specs = [layer.cache_spec for layer in ctx.cache_layers]
        check_caches(specs, ctx.block_size)
        whole = lay_out(self._specs or specs, config.max_model_len, config.max_num_batched_tokens)
        return whole.of_layers(range(self._first_layer, self._first_layer + len(specs)))

    @torch.inference_mode()
    def allocate_cache(self, num_blocks: Sequence[int]) -> None:
        assert self._context is not None and self._resting is not None
        with enough_memory("allocate the KV cache"):
            steps = self._resting.take_steps()
        try:
            self.execute = steps or self._new_steps(num_blocks)
        except BaseException:
            free_caches(self._context.cache_layers)
            raise

    def _new_steps(self, num_blocks: Sequence[int]) -> Steps:
        """Allocate caches and record steps over them."""
        assert self._model is not None and self._context is not None and self._resting is not None
        ctx = self._context
        self._ops = self._ops or self._operations(ctx, self._model.vocab_size)
        with enough_memory("allocate the KV cache"):
            if self._config.enable_sleep_mode:
                self._resting.prepare(lambda: on_device(ctx), self._platform.release_memory)
            runner = self._make_runner(num_blocks)
            self._resting.settle(ctx.cache_layers)
        with self._phase("check candidates"), self._checks.over(runner):
            runner.warm_up(SMALLEST)
        with self._phase("record graphs"):
            runner.record_graphs()
        if self._platform.asynchronous:
            with self._phase("warm up"):  # so that no request waits for a kernel
                for lengths in mixed_steps(self._config):
                    runner.warm_up(lengths)
        balance = balance_of(self._config, self._context, self._mesh.ep)
        checks = self._checks if self._config.check_candidates else None
        return Steps(runner, self._guard, balance, checks)

    def _make_runner(self, num_blocks: Sequence[int], graph: GraphOp | None = None) -> Runner:
        """Allocate caches and a runner over them, which records with `graph` or what was chosen."""
        assert self._context is not None and self._model is not None and self._ops is not None
        config = self._config
        budget = config.max_num_batched_tokens
        every = self._context.adapters is not None or self._peers.tp is not None
        layers, layout = self._context.cache_layers, self.layout(self._context)
        allocate_caches(layers, layout, num_blocks)
        most = min(budget, config.max_num_seqs * (1 + config.num_speculative_tokens))
        of = self._ops.graph, self._graph, (budget, most), self._model.hidden_size
        graph_sizes, piece_sizes, shared_sizes = sizes_of(*of, every, share_keys(layers))
        limits = RunnerLimits(
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
            block_size=config.block_size,
            max_logprobs=config.max_logprobs,
            max_samples=most,
            null_blocks=tuple(num_blocks[group.pool] for group in layout.groups),
            max_steps_in_flight=self._max_steps,
            graph_sizes=graph_sizes,
            piece_sizes=piece_sizes,
            shared_sizes=shared_sizes,
            eos_token_ids=self._model_config.eos_token_ids,
            lags=any(group.spec.drafts for group in layout.groups),
            tree=config.draft_tree,
        )
        recorded = max((*graph_sizes, *piece_sizes, *shared_sizes), default=0)
        width, dtype = entering_size(self._model), self._context.torch_dtype
        like = torch.empty(0, width, device=self._context.device, dtype=dtype)
        self._peers.make_inbox(recorded, like)
        runner = Runner(
            self._model,
            self._ops if graph is None else replace(self._ops, graph=graph),
            self._context.device,
            limits,
            assign_views(layers, layout),
            self._peers,
            self._context.adapters,
        )
        if self._head is not None:
            runner.add_head(self._head)
        return runner

    @torch.inference_mode()
    def offload(self) -> None:
        assert self._context is not None and self._resting is not None
        if self._resting.asleep:
            return
        ctx, agree = self._context, partial(self._peers.agree, device=self._context.device)
        steps = self.execute if isinstance(self.execute, Steps) else None
        stays = self._resting.give_up(on_device(ctx), ctx.cache_layers, steps, agree)
        self.execute = too_early
        if not stays:
            if self._ops is not None:  # whose memory for recordings may outlast these
                self._rested, self._ops = self._ops.rest(), None
            del steps
            gc.collect()
        with blaming(self._platform.name):
            self._platform.release_memory()

    @torch.inference_mode()
    def restore(self) -> None:
        assert self._resting is not None
        with enough_memory("take the weights back"):
            self._resting.weights.take_back()

    @torch.inference_mode()
    def update_weights(self, weights: Weights, check_only: bool = False) -> None:
        assert self._context is not None and self._resting is not None
        self._resting.weights.forget()
        with self._guard:
            update_weights(self._context.weights, source_of(weights), check_only)
            self._context.settle()

    def load_adapter(self, name: str, path: str, check_only: bool = False) -> None:
        record = self.execute.runner.record_graphs if isinstance(self.execute, Steps) else None
        self._guard(load_adapter)(self._context, name, path, check_only, record)

    def drop_adapter(self, name: str) -> None:
        required(self._context).drop(name)

    def describe_kv(self) -> KVDescriptor:
        assert self._context is not None
        config, model = self._config, self._model_config
        content = json.dumps([model.values, config.quantization], sort_keys=True, default=str)
        digest = hashlib.sha256(content.encode()).hexdigest()[:DIGEST_LENGTH]
        return described(digest, self._context.cache_layers)

    @torch.inference_mode()
    def read_kv(self, block_ids: Sequence[Sequence[int]]) -> list[list[torch.Tensor]]:
        return [read_blocks(parts, block_ids[group]) for group, parts in self._caches()]

    @torch.inference_mode()
    def write_kv(
        self, block_ids: Sequence[Sequence[int]], first: Sequence[int], blocks: KVBlocks
    ) -> None:
        own = self.describe_kv()
        for number, (group, parts) in enumerate(self._caches()):
            wanted = range(first[group], first[group] + len(block_ids[group]))
            content = converted(blocks, number, own, wanted)
            write_blocks(parts, block_ids[group], content)

    @torch.inference_mode()
    def copy_blocks(self, copies: Mapping[int, tuple[Sequence[int], Sequence[int]]]) -> None:
        copy_blocks(self._caches(), copies)

    def _caches(self) -> list[tuple[int, list[torch.Tensor]]]:
        """Return the number of the group, and the parts, of each layer's cache, in order."""
        assert self._context is not None
        layers = self._context.cache_layers
        found: dict[int, int] = {}
        for number, group in enumerate(self.layout(self._context).groups):
            found |= dict.fromkeys(group.layers, number)
        return [(found[i], cache_parts(layer)) for i, layer in enumerate(layers)]

    def start_profile(self, folder: str) -> None:
        from hotshoe.runner.profiler import Profiler  # made at the first use

        if self._profiler is None:
            self._profiler = Profiler(0 if self._rendezvous is None else self._rendezvous.rank)
        self._profiler.start(Path(folder))

    def stop_profile(self) -> str:
        """End a recording and return its file's name.

        Raises:
            RequestError: Nothing is being recorded.
        """
        if self._profiler is None:
            raise RequestError("no profile is being recorded; start one first")
        return self._profiler.stop().name

    def close(self) -> None:
        self.execute = too_early
        self._model = self._context = self._ops = self._resting = self._head = None
        gc.collect()  # recordings must go before the communicator that they use
        self._peers.close()
        with blaming(self._platform.name):
            self._platform.release_memory()

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        with self._guard, enough_memory(name):
            yield
        self._phases[name] = time.perf_counter() - begin

    def _blame(self, error: BaseException) -> BaseException:
        """Say whose operation failed, and let nobody but the user end the process."""
        fault = self._selector.fault(error)
        if fault is None and isinstance(error, Exception):
            return error
        return fault or EngineError(f"a library raised {cause_of(error)}")
