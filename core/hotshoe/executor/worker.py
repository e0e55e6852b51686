"""The worker interface: what the engine needs of whatever computes steps.

Core's own worker is `hotshoe.runner.worker.TorchWorker`; a platform without PyTorch may bring one.
Free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from hotshoe.slots.verdict import Decision
from hotshoe.types import CacheLayout, StepHandle, StepPlan
from hotshoe.types.pooling import PoolingKind

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker found once its model is loaded.

    Attributes:
        vocab_size: Width of the logits and rows of the embedding; token ids lie below it.
        block_bytes: Bytes of one KV-cache block over all layers.
        caches: Cache groups and their pools; None is one group over one pool, of `block_bytes`.
        cache_budget_bytes: Bytes that the platform still grants for the cache.
        budget_note: How the budget was found.
        weight_bytes: Bytes of the matrices as they are held, and of the embeddings' tables.
        decisions: Every slot decision of the model.
        phases: Start-up phases and their seconds, in order; `allocate_cache` may add to it.
        report: What the platform says of itself, such as its thread count.
        free_bytes: Bytes that are free on the device, if that is known: no cache may take more.
        tasks: What the model can be asked for: "generate", "embed", "classify", "token_embed",
            "token_classify".
        hidden_size: Entries of the vectors that "embed" makes.
        class_pooling: Which state of a text "classify" reads.
        step_token: The token whose states "token_classify" reads; None for those of every token.
        loras_ahead: How many adapters of waiting requests come to the device beside steps.
        has_logits: Whether tokens are sampled from logits. Without them, requests that ask for log
            probabilities or a grammar, or that favor or forbid single tokens, are refused.
    """

    vocab_size: int
    block_bytes: int
    cache_budget_bytes: int
    budget_note: str = ""
    weight_bytes: int = 0
    decisions: tuple[Decision, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)
    report: Mapping[str, object] = field(default_factory=dict)
    free_bytes: int | None = None
    has_logits: bool = True
    tasks: tuple[str, ...] = ("generate",)
    hidden_size: int = 0
    class_pooling: PoolingKind = "last"
    step_token: int | None = None
    loras_ahead: int = 0
    caches: CacheLayout | None = None


@runtime_checkable
class Worker(Protocol):
    """Computes steps, one after the other, in the order they are given."""

    def load(self) -> WorkerInfo:
        """Build the model and load its weights."""
        ...

    def allocate_cache(self, num_blocks: Sequence[int]) -> None:
        """Take memory for the KV cache: so many blocks in each pool, and a null block each. Called
        before the first step, and again after `offload` and `restore`."""
        ...

    def execute(self, plan: StepPlan) -> StepHandle:
        """Compute a step; an asynchronous worker returns before the device has finished."""
        ...

    def close(self) -> None:
        """Release the device and all memory. May be called twice."""
        ...


@runtime_checkable
class ProfiledWorker(Protocol):
    """What a worker has beside the above if it can record what it computes."""

    def start_profile(self, folder: str) -> None:
        """Begin to record the steps that follow.

        Raises:
            RequestError: A recording is under way, or the folder cannot be made.
        """
        ...

    def stop_profile(self) -> str:
        """Write the recording into the folder and return the file's name.

        Raises:
            RequestError: There is none.
        """
        ...


@runtime_checkable
class AdapterWorker(Protocol):
    """What a worker has beside the above if requests may name low-rank adapters.

    All is called between steps.
    """

    def load_adapter(self, name: str, path: str, check_only: bool = False) -> None:
        """Read an adapter from a directory, in place of one of this name.

        Args:
            name: Of the adapter.
            path: The directory.
            check_only: Refuse what does not fit, and keep nothing.

        Raises:
            UserError: It cannot be read or does not fit the model; nothing has changed.
        """
        ...

    def drop_adapter(self, name: str) -> None:
        """Forget an adapter that no unfinished request names."""
        ...


@runtime_checkable
class StatesWorker(Protocol):
    """What a worker has beside the above if its model keeps states, and can go back to one."""

    def copy_blocks(self, copies: Mapping[int, tuple[Sequence[int], Sequence[int]]]) -> None:
        """Copy blocks of cache groups, behind the steps that were given and before later ones.

        Args:
            copies: By group: blocks, and those that become like them.
        """
        ...


@runtime_checkable
class WeightsWorker(Protocol):
    """What a worker has beside the above if its weights can be moved and replaced.

    All is called between steps.
    """

    def offload(self) -> None:
        """Give the cache back, and keep the weights in host memory alone. Where they are there
        alone already, as behind a `restore` that failed, nothing happens.

        Raises:
            RequestError: The weights cannot be moved; nothing has changed.
        """
        ...

    def restore(self) -> None:
        """Take the weights back onto the device.

        Raises:
            MemoryLimitError: There is too little memory; nothing was taken.
        """
        ...

    def update_weights(
        self, weights: str | Path | Iterable[tuple[str, Tensor]], check_only: bool = False
    ) -> None:
        """Write new values over weights, in place.

        Args:
            weights: A directory, a safetensors file, or names and tensors: some or all of the
                checkpoint's.
            check_only: Refuse what does not fit, and write nothing.

        Raises:
            CheckpointError: One does not fit; nothing has changed.
        """
        ...
