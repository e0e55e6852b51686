"""Which adapter each row has, and what that means for a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from hotshoe.config import EngineConfig
from hotshoe.errors import RequestError
from hotshoe.layers import AdapterLimits, AdapterTable, BuildContext
from hotshoe.loader.adapter import read_adapter
from hotshoe.runner.granted import enough_memory
from hotshoe.runner.limits import RunnerLimits
from hotshoe.runner.rows import StepInputs
from hotshoe.slots import TransferOp
from hotshoe.types import NewRow


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
        self._names: list[str | None] = [None] * limits.max_num_seqs
        recorded = max((*limits.graph_sizes, *limits.piece_sizes), default=0)
        table.reserve(recorded, device, transfer)

    def set_row(self, new: NewRow) -> None:
        """Take over what a new row names."""
        self._names[new.row] = new.params.adapter

    def end(self) -> None:
        """Let no adapter take part in what follows, which no request asks for."""
        self._table.uses = {}

    def record(self, size: int, adapted: bool) -> None:
        """Let a step of so many tokens be recorded, with adapters or without."""
        self.end()
        if adapted:
            self.pad(size)

    def pad(self, size: int) -> bool:
        """See `AdapterTable.pad`."""
        return self._table.pad(size)

    @contextmanager
    def only(self, row: int, count: int) -> Iterator[None]:
        """While active, have the output matrix given `count` tokens of one row."""
        uses = self._table.uses
        if uses:
            self._table.begin([self._names[row]], [count], torch.arange(count), self._device)
        try:
            yield
        finally:
            self._table.uses = uses

    def begin(self, inputs: StepInputs) -> bool:
        """Let the adapters of a step's rows take part; tell whether there are any."""
        names = [self._names[row] for row in inputs.rows.tolist()]
        counts = np.diff(inputs.query_start_loc).tolist()
        sample_at = torch.from_numpy(inputs.sample_at).long()
        return self._table.begin(names, counts, sample_at, self._device)


def adapter_table(config: EngineConfig) -> AdapterTable | None:
    """Make room for adapters, if the configuration asks for it."""
    targets = tuple(config.lora_target_modules)
    limits = AdapterLimits(config.max_loras, config.max_lora_rank, targets)
    return AdapterTable(limits) if config.enable_lora else None


def load_adapter(ctx: BuildContext | None, name: str, path: str, check_only: bool) -> None:
    """See `hotshoe.executor.AdapterWorker.load_adapter`."""
    table = required(ctx)
    with torch.inference_mode(), enough_memory("load an adapter"):
        factors = table.own(read_adapter(Path(path)))
        if not check_only:
            table.load(name, factors)


def required(ctx: BuildContext | None) -> AdapterTable:
    """Return the adapters of a model that was built.

    Raises:
        RequestError: It takes none.
    """
    assert ctx is not None
    if ctx.adapters is None:
        raise RequestError("this engine takes no adapters; start it with --enable-lora")
    return ctx.adapters
