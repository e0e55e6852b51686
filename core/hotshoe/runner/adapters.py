"""Which adapter each row has, and what that means for a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError, RequestError
from hotshoe.host import granted_memory
from hotshoe.layers import AdapterLimits, AdapterTable, BuildContext, Changes
from hotshoe.layers.weights import HOST
from hotshoe.loader.adapter import read_adapter
from hotshoe.models import ModelConfig
from hotshoe.models.base import GENERATE, Model
from hotshoe.runner.granted import enough_memory
from hotshoe.runner.inbox import ALIGNMENT_BYTES, Inbox
from hotshoe.runner.limits import RunnerLimits
from hotshoe.runner.rows import StepInputs
from hotshoe.slots import TransferOp
from hotshoe.types import StepPlan

GIB = 2**30


class AdapterRows:
    """Adapters by row.

    Args:
        table: Those that were loaded.
        limits: Rows that there are, and the steps that are recorded.
        device: Where steps run.
        transfer: Copies to it.
    """

    def __init__(
        self, table: AdapterTable, limits: RunnerLimits, device: str, transfer: TransferOp
    ) -> None:
        self._table = table
        self._device = device
        self._ahead: Sequence[str] = ()
        self._names: list[str | None] = [None] * limits.max_num_seqs
        recorded = max((*limits.graph_sizes, *limits.piece_sizes), default=0)
        # No larger step may write where recordings read.
        nbytes = 4 * (2 * recorded + table.limits.max_adapters + 1) + 3 * ALIGNMENT_BYTES
        whole, sampling = (
            Inbox(transfer, device, nbytes, limits.max_steps_in_flight) for _ in range(2)
        )
        stages = (lambda arrays: whole.stage(arrays)[0]), (lambda arrays: sampling.stage(arrays)[0])
        table.reserve(recorded, stages, (device, transfer))

    def take(self, plan: StepPlan) -> None:
        """Take over what new rows name, and what later steps need."""
        for new in plan.new_rows:
            self._names[new.row] = new.params.adapter
        self._ahead = plan.adapters_ahead

    def end(self) -> None:
        """Let no adapter take part in what follows, which no request asks for."""
        self._table.uses = {}

    def recordable(self) -> tuple[Changes, ...]:
        """See `AdapterTable.recordable`."""
        return self._table.recordable()

    def record(self, sizes: Iterable[int], changes: Changes) -> None:
        """Let a step of so many tokens be recorded in which adapters may change so much.

        Args:
            sizes: Of the recording, and of its operations that run between pieces.
            changes: See `Changes`.
        """
        self.end()
        if changes:
            self._table.clear()
            for size in sizes:
                self.pad(size, changes)

    def pad(self, size: int, changes: Changes) -> None:
        """See `AdapterTable.pad`."""
        self._table.pad(size, changes)

    @contextmanager
    def only(self, row: int, count: int) -> Iterator[None]:
        """While active, have the output matrix given `count` tokens of one row."""
        uses = self._table.uses
        if uses:
            self._table.one(self._names[row], count, self._device)
        try:
            yield
        finally:
            self._table.uses = uses

    def begin(self, inputs: StepInputs) -> Changes:
        """Let the adapters of a step's rows take part; tell what they change."""
        names = [self._names[row] for row in inputs.rows.tolist()]
        counts = np.diff(inputs.query_start_loc).tolist()
        return self._table.begin(names, counts, inputs.sample_at, self._ahead)


def adapter_table(
    config: EngineConfig, device: str, free: Callable[[], int] | None
) -> AdapterTable | None:
    """Make room for adapters, if the configuration asks for it.

    Args:
        config: Of the engine.
        device: Where steps run; nothing comes ahead to the host itself.
        free: See `AdapterTable`.
    """
    if not config.enable_lora:
        return None
    ahead = 0 if torch.device(device) == HOST else config.loras_ahead
    targets = tuple(config.lora_target_modules)
    places = config.max_loras + ahead
    room = int((config.lora_host_memory_gib or 0) * GIB) or _share_of_host(config)
    return AdapterTable(AdapterLimits(places, config.max_lora_rank, targets, ahead, room), free)


def check_model(table: AdapterTable, model: Model, config: ModelConfig, alone: bool) -> None:
    """Refuse what adapters cannot be of.

    Args:
        table: Of the model.
        model, config: It was built, from this.
        alone: All layers are here.

    Raises:
        ConfigError: It makes vectors alone, or has no matrix that an option names.
    """
    if GENERATE not in model.tasks:
        raise ConfigError(
            f"enable_lora: {config.architecture} writes no text, and adapters are served of models "
            "that do; leave it out, or merge the adapter into the model"
        )
    if alone:
        table.check_targets()


def _share_of_host(config: EngineConfig) -> int:
    """Return a rank's part of a quarter of the memory that processes may use."""
    ranks = config.tensor_parallel_size * config.pipeline_parallel_size
    return granted_memory() // 4 // ranks


def load_adapter(
    ctx: BuildContext | None,
    name: str,
    path: str,
    check_only: bool,
    record: Callable[[], None] | None,
) -> None:
    """See `hotshoe.executor.AdapterWorker.load_adapter`; record what it is the first to change.

    Args:
        ctx: Of the model that was built.
        name, path, check_only: As there.
        record: See `Runner.record_graphs`; None while there is nothing to run steps.
    """
    table = required(ctx)
    with torch.inference_mode(), enough_memory("load an adapter"):
        factors = table.own(read_adapter(Path(path)))
        if check_only:
            table.check_room(name, factors)
        else:
            table.load(name, factors)
    if record is not None and not check_only:
        with enough_memory("record graphs"):
            record()


def required(ctx: BuildContext | None) -> AdapterTable:
    """Return the adapters of a model that was built.

    Raises:
        RequestError: It takes none.
    """
    assert ctx is not None
    if ctx.adapters is None:
        raise RequestError("this engine takes no adapters; start it with --enable-lora")
    return ctx.adapters
