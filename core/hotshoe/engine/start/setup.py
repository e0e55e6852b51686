"""The one bootstrap: from a configuration to everything an engine is made of, before any memory
is taken. Every incompatibility between configuration, platform and model is found here, by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from hotshoe.config import DTYPES, EngineConfig, ResolvedConfig
from hotshoe.engine.start.cache_plan import check_asked
from hotshoe.engine.start.executors import check_executor, make_worker, ranks_here
from hotshoe.engine.start.heads import find_head, with_head
from hotshoe.engine.start.places import find_model, find_tokenizer, open_model
from hotshoe.engine.start.processors import FoundProcessor, find_processors, make_processors
from hotshoe.engine.start.trees import settle_trees
from hotshoe.errors import CheckpointError, ConfigError, PluginError
from hotshoe.executor import Worker
from hotshoe.lazy import resolve_lazy
from hotshoe.models import ModelConfig
from hotshoe.models.generation import sampling_defaults
from hotshoe.models.pooling import pooling_of_file, pooling_of_words, read_pooling
from hotshoe.models.quantization import only_laid_out, stored_quantization
from hotshoe.models.sentences import read_length
from hotshoe.models.source import FoundModel
from hotshoe.platform import Change, Platform
from hotshoe.plugins import HOOK_API, PluginManager
from hotshoe.plugins.manager import blaming_plugin
from hotshoe.plugins.platforms import blaming, candidates_of, choose_platform, facts_of
from hotshoe.slots import Rendezvous, Selector, all_slots
from hotshoe.speculation.drafting import device_search
from hotshoe.suggest import did_you_mean
from hotshoe.text.late import find_late
from hotshoe.types import Pooling
from hotshoe.types.pooling import PoolingKind

if TYPE_CHECKING:
    from hotshoe.layers import BuildContext, WeightFormat
    from hotshoe.models.base import Model, ModelBuilder

PLATFORMS = "hotshoe_platforms"
FORMATS = "hotshoe_weight_formats"
NATIVE, IMPLS = "hotshoe_models", "hotshoe_model_impls"
#: Hooks that say how long texts of an architecture may be.
LENGTHS = ("hotshoe_model_lengths", "hotshoe_encoders")
#: The hook version since which a worker takes drafts and returns lists of tokens.
WORKER_API = 2
DEFAULT_BLOCK_SIZE = 16
DEFAULT_TOKEN_BUDGET = 2048
#: Why a platform is taken that nobody named.
BEST = "the available platform with the highest score"


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """A configuration made concrete.

    Attributes:
        config: Resolved: what was None or "auto" has a value.
        changes: What was decided for the user, and why.
        selector: Over the platform's and the plugins' candidates; it keeps the decisions.
        sampling_defaults: Fields of `SamplingParams` for what requests leave open.
        pooling: How embeddings are made; None where nobody says.
        processors: Of logits, by the order of the configuration.
    """

    config: ResolvedConfig
    changes: tuple[Change, ...]
    plugins: PluginManager
    platform: Platform
    model_config: ModelConfig
    selector: Selector
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    pooling: Pooling | None = None
    processors: Sequence[FoundProcessor] = ()

    def create_worker(self) -> Worker:
        """Make the worker, by the executor that the configuration names.

        Raises:
            ConfigError: The executor cannot run what is configured.
            PluginError: No plugin knows the executor, the architecture or the quantization method;
                or the platform's own worker answers steps as hook API 1 had it.
        """
        return make_worker(self)

    def own_worker(self) -> Worker | None:
        """Make the platform's own worker, if it has one.

        Raises:
            ConfigError: It cannot do what core's would.
            PluginError: It answers steps as hook API 1 had it.
        """
        with blaming(self.platform.name):
            own = self.platform.create_worker(self.config)
            if not isinstance(own, Worker | None):
                raise TypeError(f"create_worker() returned {type(own).__name__}, not a Worker")
        if own is not None and self.config.logits_processors:
            raise ConfigError(
                f"logits_processors: platform {self.platform.name} samples in a worker of its own; "
                "leave them out"
            )
        if own is not None and device_search(self.config, self.plugins) is not None:
            raise ConfigError(
                f"speculative_config: platform {self.platform.name} has a worker of its own, which "
                "looks up no drafts on the device; use another method, such as auto"
            )
        if own is not None and self.config.offloads:
            raise ConfigError(
                f"offload_weights, cpu_offload_gb: platform {self.platform.name} has a worker of "
                "its own, which keeps all weights where it computes; leave the options out"
            )
        if own is not None and self.platform.name in self.plugins.mapping(PLATFORMS):
            owner = self.plugins.owner(PLATFORMS, self.platform.name)
            if (owner.hook_api or HOOK_API) < WORKER_API:
                raise PluginError(
                    f"plugin {owner.name} ({owner.distribution} {owner.version}) brings a worker "
                    f"built for hook API {owner.hook_api}; since {WORKER_API}, a step yields lists "
                    "of tokens (StepResult.tokens): use a newer version of it"
                )
        return own

    def torch_worker(self, rendezvous: Rendezvous | None = None) -> Any:
        """Make core's own worker, one of several where there is a rendezvous."""
        from hotshoe.runner.projected import with_projection
        from hotshoe.runner.worker import TorchWorker

        builder, stored = self._builder(), self._format()
        builder = with_head(builder, self.config.speculative_config, self.plugins)
        random, late = self.config.load_format == "dummy", find_late(self.model_config)
        builder = with_projection(builder, random, late)
        worker = TorchWorker(
            self.config,
            self.model_config,
            self.platform,
            self.selector,
            builder,
            stored,
            rendezvous,
        )
        path = str(self.model_config.path)
        worker.make_processors = partial(make_processors, self.processors, path)
        worker.search = device_search(self.config, self.plugins)
        return worker

    def _format(self) -> WeightFormat:
        """Return how matrices are stored: as the checkpoint says, or the user wants them.

        Raises:
            ConfigError: Both say something, and not the same.
        """
        from hotshoe.layers.formats import PLAIN

        config, asked = stored_quantization(self.model_config), self.config.quantization
        if config is not None:
            name = str(config["quant_method"])
            if asked not in (None, name) and not only_laid_out(config):
                raise ConfigError(
                    f"quantization {asked}: {self.config.model} is quantized already, as {name}; "
                    "leave the option out, or use the unquantized checkpoint"
                )
            self._check_known(name)
            stored = self._made_format(FORMATS, "weight format", name, config)
            if asked in (None, name):
                return self._named(stored)
            made = self._made_format("hotshoe_quantizations", "quantization", asked)
            made.decode, made.by_expert = stored.decode, stored.by_expert
            return made
        if asked is not None:
            return self._made_format("hotshoe_quantizations", "quantization", asked)
        if self.config.quantization_cache_dir is not None:
            raise ConfigError(
                "quantization_cache_dir keeps what --quantization makes of weights; name a method, "
                "such as int4, or leave it out"
            )
        file = self.model_config.file
        random = self.config.load_format == "dummy"  # random bytes are no blocks
        return PLAIN if file is None or random else file.format()

    def _check_known(self, method: str) -> None:
        """Refuse the `quant_method` of a checkpoint that no plugin offers.

        Raises:
            CheckpointError: None does.
        """
        known = sorted({*self.plugins.mapping(FORMATS), *self.plugins.conflicts(FORMATS)})
        if known and method not in known:
            raise CheckpointError(
                f"{self.config.model}: quant_method of quantization_config is {method!r:.60}"
                f"{did_you_mean(method, known)}, which no installed plugin reads; use another "
                "quantization of the model, or its unquantized checkpoint, with --quantization if "
                f"wanted. Known are {', '.join(known)}{self.plugins.broken_note()}"
            )

    def _named(self, format: WeightFormat) -> WeightFormat:
        """Tell a format which tensors the checkpoint has; what is wrong with its files, their
        loading says, and `explain` needs none."""
        from hotshoe.layers.named import NamedFormat
        from hotshoe.loader.sources import source_of

        names: list[str] = []
        if self.config.load_format != "dummy":
            with suppress(CheckpointError):
                names = list(source_of(self.model_config.path).names())
        if names and format.survey is not None:
            format.survey(names)
        return NamedFormat(format, names)

    def _made_format(self, hook: str, kind: str, name: str, *arguments: object) -> WeightFormat:
        """Let the plugin make a format."""
        from hotshoe.layers.formats import checked_format
        from hotshoe.layers.guarded import GuardedFormat
        from hotshoe.layers.wrapped import placed_format
        from hotshoe.loader.kept import kept_format

        method = self.plugins.pick(kind, name, hook)
        guard = blaming_plugin(self.plugins, hook, name)
        with guard:
            made = checked_format(resolve_lazy(method)(*arguments), name)
            made = placed_format(made, self.selector.facts)
            if self.config.quantization_cache_dir is not None:
                made = kept_format(made, name, self.config)
        return GuardedFormat(made, guard)

    def _builder(self) -> ModelBuilder:
        """Return what builds the architecture, and names its plugin where that fails."""
        from hotshoe.runner.granted import enough_memory

        hook, kind, name = NATIVE, "architecture", self.model_config.architecture
        own = dict.fromkeys(("auto", "native"))
        if self.config.model_impl in own:
            own = {}
        else:
            hook, kind, name = IMPLS, "model implementation", self.config.model_impl
        reference = self.plugins.pick(kind, name, hook, own)

        def build(config: ModelConfig, ctx: BuildContext) -> Model:
            with blaming_plugin(self.plugins, hook, name), enough_memory("build model"):
                model: Model = resolve_lazy(reference)(config, ctx)
                if not hasattr(model, "vocab_size"):
                    raise TypeError(f"it built {type(model).__name__}, which is no Model")
            return model

        return build


def prepare(
    config: EngineConfig,
    plugins: PluginManager | None = None,
    platform: Platform | None = None,
    part: tuple[int, int] | None = None,
) -> EngineSetup:
    """Resolve a configuration against what is installed, as the given rank sees it.

    Args:
        config: As given.
        plugins: Default: those installed.
        platform: One that is already chosen.
        part: Place among the ranks of this host, and their number; default: the first of those
            that core's own executors would have here, to find out whether that can be.

    Raises:
        UserError: Anything that cannot work, named.
    """
    plugins = plugins or PluginManager(disabled=config.disable_plugins)
    platform = platform or choose_platform(plugins, config.platform)
    found, tokenizer = find_model(config, plugins), find_tokenizer(config, plugins)
    file, lengths = open_model(found.path, plugins), map(plugins.mapping, LENGTHS)
    model_config = ModelConfig.load(found.path, config.hf_overrides, file, *lengths)
    changes = _found_changes(config, found, tokenizer) + find_head(config, plugins)
    if config.platform == "auto":
        changes.append(Change("platform", platform.name, BEST))
    changes += _model_changes(config, model_config, platform, plugins)
    resolved = config.resolve_changes(changes)
    with blaming(platform.name):
        by_platform = list(platform.resolve(resolved))
        resolved = resolved.resolve_changes(by_platform)
    _check_division(resolved)
    check_executor(plugins, resolved.distributed_executor_backend)
    if resolved.num_ranks > 1:
        platform.take_part(*(part or (0, ranks_here(resolved))))
    by_core = _remaining_changes(resolved, platform)
    resolved = ResolvedConfig.of(resolved.resolve_changes(by_core))
    with blaming(platform.name):
        candidates, facts = candidates_of(platform, plugins), facts_of(platform)
    check_asked(resolved, facts)
    selector = Selector(
        all_slots(plugins),
        candidates,
        facts,
        forced=resolved.kernel,
        require_native=resolved.require_native,
        batch_invariant=resolved.batch_invariant,
    )
    setup = EngineSetup(
        resolved,
        (*changes, *by_platform, *by_core),
        plugins,
        platform,
        model_config,
        selector,
        _sampling_defaults(config, model_config),
        _pooling(config, model_config),
        find_processors(resolved, plugins),
    )
    return settle_trees(setup)


def _sampling_defaults(config: EngineConfig, model: ModelConfig) -> Mapping[str, Any]:
    overrides = config.override_generation_config
    return sampling_defaults(config.generation_config, model.path, overrides)


def _pooling(config: EngineConfig, model: ModelConfig) -> Pooling | None:
    """Return how embeddings are made: as the user says, else as the checkpoint does."""
    if config.pooling is not None:
        return Pooling(cast(PoolingKind, config.pooling))
    return pooling_of_words(model) or read_pooling(model.path) or pooling_of_file(model)


def _found_changes(
    config: EngineConfig, model: FoundModel, tokenizer: FoundModel | None
) -> list[Change]:
    """Hold on to what was fetched, so that every process works with the same."""
    changes: list[Change] = []
    if model.revision not in (None, config.revision):
        changes.append(Change("revision", model.revision, "what is fetched, by its exact name"))
    if tokenizer is not None and tokenizer.revision is not None:
        reason = f"{config.tokenizer} as fetched, revision {tokenizer.revision}"
        changes.append(Change("tokenizer", str(tokenizer.path), reason))
    elif tokenizer is not None and str(tokenizer.path) != config.tokenizer:
        changes.append(Change("tokenizer", str(tokenizer.path), f"{config.tokenizer} means it"))
    return changes


def _impl_changes(config: EngineConfig, model: ModelConfig, plugins: PluginManager) -> list[Change]:
    """Let a library's code compute what no plugin describes."""
    known = model.architecture in plugins.mapping(NATIVE)
    contested = model.architecture in plugins.conflicts(NATIVE)
    impls = sorted(plugins.mapping(IMPLS))
    if config.model_impl != "auto" or known or contested or not impls or model.file is not None:
        return []
    reason = f"no plugin describes {model.architecture}; expect less speed than of one that does"
    return [Change("model_impl", impls[0], reason)]


def _check_division(config: EngineConfig) -> None:
    """Refuse options of a division among devices that does not take place."""
    _check_pipeline(config)
    _check_experts(config)


def _check_pipeline(config: EngineConfig) -> None:
    """Refuse options of a pipeline where there is none, or another number of stages."""
    stages, sizes = config.pipeline_parallel_size, config.pipeline_layers
    if stages == 1 and (sizes or config.pipeline_steps is not None):
        name = "pipeline_layers" if sizes else "pipeline_steps"
        raise ConfigError(f"{name} needs pipeline_parallel_size above 1; raise it, or leave it out")
    if sizes and (len(sizes) != stages or min(sizes) < 1):
        raise ConfigError(
            f"pipeline_layers must be {stages} numbers of at least 1, one for each of the stages "
            f"of pipeline_parallel_size, not {', '.join(map(str, sizes))}"
        )


def _check_experts(config: EngineConfig) -> None:
    """Check that experts which are to move can."""
    if config.num_redundant_experts and not config.enable_eplb:
        raise ConfigError(
            "num_redundant_experts: without enable_eplb no expert has a second place; set both"
        )
    if not config.enable_eplb:
        return
    if not config.enable_expert_parallel or config.tensor_parallel_size == 1:
        raise ConfigError(
            "enable_eplb moves experts between devices; it needs enable_expert_parallel and a "
            "tensor_parallel_size of 2 or more"
        )
    if config.batch_invariant:
        raise ConfigError(
            "enable_eplb and batch_invariant exclude each other: an expert's device changes the "
            "order of a sum; leave one of them out"
        )


def _model_changes(
    config: EngineConfig, model: ModelConfig, platform: Platform, plugins: PluginManager
) -> list[Change]:
    changes = _impl_changes(config, model, plugins)
    if model.whole_prompts:
        changes += _whole_changes(config, model)
    elif config.max_model_len is None:
        changes.append(Change("max_model_len", *_default_len(model)))
    if config.max_model_len is not None and config.max_model_len > model.longest_len:
        raise ConfigError(
            f"max_model_len {config.max_model_len} exceeds the model's {model.longest_len} "
            "positions; lower it, or change the model's rope scaling with --hf-overrides"
        )
    if config.dtype == "auto":
        with blaming(platform.name):
            dtype, reason = platform.dtype_for(model.dtype)
        if dtype == model.dtype and dtype not in DTYPES:
            raise ConfigError(
                f"the checkpoint's type is {dtype}, in which nothing is computed; "
                "choose another with --dtype, such as float32"
            )
        changes.append(Change("dtype", dtype, reason))
    return changes


def _whole_changes(config: EngineConfig, model: ModelConfig) -> list[Change]:
    """Let steps hold the longest prompt, or prompts be no longer than what steps hold.

    Raises:
        ConfigError: Both are given, and do not fit.
    """
    budget, length = config.max_num_batched_tokens, config.max_model_len
    why = "a step takes all of a prompt, as its tokens see later ones"
    default, said = _default_len(model)
    if budget is None:
        budget = max(length or default, DEFAULT_TOKEN_BUDGET)
        changes = [Change("max_num_batched_tokens", budget, why)]
    elif length is not None and length > budget:
        raise ConfigError(
            f"max_num_batched_tokens {budget} is below max_model_len {length}, but {why}; raise "
            "the one, or lower the other"
        )
    else:
        changes = []
    if length is None:
        reason = said if default < model.max_model_len and default <= budget else why
        changes.append(Change("max_model_len", min(budget, default), reason))
    return changes


def _default_len(model: ModelConfig) -> tuple[int, str]:
    """Return the longest prompt where the user says nothing, and the reason."""
    own = read_length(model.path) if model.file is None else None
    if own is not None and own < model.max_model_len:
        return own, "max_seq_length of sentence-transformers' file"
    return model.max_model_len, "the model's positions"


def _remaining_changes(config: EngineConfig, platform: Platform) -> list[Change]:
    """Decide what neither user, model nor platform has decided."""
    changes: list[Change] = []
    if config.kv_cache_dtype == "auto":
        changes.append(Change("kv_cache_dtype", config.dtype, "the model's type"))
    if config.block_size is None:
        changes.append(Change("block_size", DEFAULT_BLOCK_SIZE, "the default"))
    executor = config.distributed_executor_backend
    if executor is None:
        executor, reason = ("mp", "several ranks") if config.num_ranks > 1 else ("uni", "one rank")
        changes.append(Change("distributed_executor_backend", executor, reason))
    if config.async_scheduling is None:
        kind = "asynchronous" if platform.asynchronous else "synchronous"
        overlap, reason = platform.asynchronous, f"the platform is {kind}"
        if executor != "uni":
            overlap, reason = True, "ranks compute in processes of their own"
        changes.append(Change("async_scheduling", overlap, reason))
    stages = config.pipeline_parallel_size
    if stages > 1 and config.pipeline_steps is None:
        serial = config.async_scheduling is False
        reason = "async_scheduling is off" if serial else "one for each stage"
        changes.append(Change("pipeline_steps", 1 if serial else stages, reason))
    budget = config.max_num_batched_tokens
    if budget is None:
        budget = DEFAULT_TOKEN_BUDGET
        changes.append(Change("max_num_batched_tokens", budget, "the default"))
    if budget < config.max_num_seqs:
        changes.append(
            Change(
                "max_num_seqs",
                budget,
                "no more rows than the token budget can advance",
            )
        )
    return changes
