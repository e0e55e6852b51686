"""A second, smaller model beside an engine's own, which makes its drafts: its life. What it is set
up from is in `engine.start.draft`, how it computes drafts in `hotshoe.speculation.draft_rows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hotshoe.config import ResolvedConfig
from hotshoe.engine.core.rest import fall_asleep, wake
from hotshoe.engine.start.cache_plan import cache_bytes, layout_of
from hotshoe.engine.start.draft import NAME, draft_setup, naming, share_caches
from hotshoe.errors import ConfigError, UserError
from hotshoe.executor import StatesWorker, Worker, WorkerInfo
from hotshoe.speculation.draft_rows import DraftLimits, DraftRows
from hotshoe.speculation.proposer import Wanted

if TYPE_CHECKING:
    from hotshoe.engine.start.setup import EngineSetup
    from hotshoe.scheduler import Request


class DraftModel:
    """The model, its worker and its memory; see `hotshoe.speculation.proposer.Drafter`.

    Args:
        setup: Its own.
        platform: The engine's.

    Raises:
        UserError: It cannot be used as configured.
    """

    def __init__(self, setup: EngineSetup, platform: str) -> None:
        self._setup = setup
        #: Its device is the engine's, and so is its memory.
        self._is_beside = setup.config.platform == platform
        with naming(setup.config.model):
            self._worker: Worker | None = setup.create_worker()
        self.name = self._setup.config.model
        self._verifying = 0
        self._num_blocks: tuple[int, ...] = ()
        self._rows: DraftRows | None = None

    def load(self) -> None:
        """Build the model and load its weights.

        Raises:
            ConfigError: It keeps states of sequences that its worker cannot copy.
        """
        assert self._worker is not None
        with naming(self.name):
            self._info = self._worker.load()
            groups = layout_of(self._setup.config, self._info).groups
            states = any(group.spec.kind == "state" for group in groups)
            if states and not isinstance(self._worker, StatesWorker):
                raise ConfigError(
                    f"platform {self._setup.config.platform} computes it in a worker of its own, "
                    "which cannot copy the states that it keeps; use a model without states"
                )

    def share(self, config: ResolvedConfig, info: WorkerInfo) -> tuple[ResolvedConfig, WorkerInfo]:
        """Take a part of the memory that there is for caches; see `share_caches`.

        Args:
            config, info: Of the engine; its model and this one are loaded.

        Returns:
            Both, with the memory that is left.

        Raises:
            UserError: Memory or vocabulary do not fit.
        """
        self._verifying = info.vocab_size
        if config.skip_tokenizer_init and info.vocab_size != self._info.vocab_size:
            raise ConfigError(
                f"{NAME}.model: {self.name} has {self._info.vocab_size} tokens and {config.model} "
                f"has {info.vocab_size}; use a draft model of the same vocabulary"
            )
        shared = share_caches(self._setup.config, self._info, config, info)
        self._num_blocks = shared.num_blocks
        return shared.config, shared.info

    @property
    def weight_bytes(self) -> int:
        return self._info.weight_bytes

    @property
    def cache_bytes(self) -> int:
        return cache_bytes(self._info, self._num_blocks)

    @property
    def beside_bytes(self) -> int:
        """Of its cache, on the engine's device."""
        return self.cache_bytes if self._is_beside else 0

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes by purpose."""
        return {"draft_weights": self.weight_bytes, "draft_kv_cache": self.cache_bytes}

    def allocate(self) -> None:
        """Take memory for the cache that `share` planned."""
        assert self._worker is not None
        with naming(self.name):
            self._worker.allocate_cache(self._num_blocks)
        self._open_rows()

    def _open_rows(self) -> None:
        """Forget all sequences: the cache holds nothing."""
        assert self._worker is not None
        config = self._setup.config
        limits = DraftLimits(
            config.max_num_seqs,
            config.max_model_len,
            config.max_num_batched_tokens,
            (self._info.vocab_size, self._verifying),
        )
        caches = self._info.caches
        groups = () if caches is None else caches.groups
        self._rows = DraftRows(self._worker, limits, self._num_blocks, config.block_size, groups)

    def fall_asleep(self, level: int) -> None:
        """Give memory back, with all that is known of sequences; see `engine.rest`.

        Weights that cannot be moved are read again on waking: the engine's model sleeps already.
        """
        if (worker := self._worker) is not None:
            self._rows = None
            try:
                self._worker = fall_asleep(worker, level)
            except UserError:
                self._worker = fall_asleep(worker, 2)

    def wake(self, missing: set[str]) -> None:
        """Take memory back."""
        create = self._setup.create_worker
        self._worker = wake(self._worker, missing, create, self._num_blocks, lambda worker: None)
        if "kv_cache" in missing:
            self._open_rows()

    def close(self) -> None:
        """Release the device and all memory. May be called twice."""
        if self._worker is not None:
            self._worker.close()

    def add(self, request: Request) -> None: ...

    def discard(self, request: Request) -> None:
        if self._rows is not None:
            self._rows.discard(request.request_id)

    def propose(self, wanted: Sequence[Wanted]) -> list[list[int]]:
        assert self._rows is not None, "a step has ended, so nothing sleeps"
        return self._rows.propose(wanted)


def open_draft_model(setup: EngineSetup) -> DraftModel | None:
    """Make the draft model that the configuration names; None where it names none.

    Raises:
        UserError: It cannot be used.
    """
    own = draft_setup(setup)
    return None if own is None else DraftModel(own, setup.config.platform)
