"""The adapters of an engine: which are loaded, from where, and under which key their caches lie."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

from hotshoe.errors import CheckpointError, RequestError
from hotshoe.executor import AdapterWorker, Worker
from hotshoe.suggest import did_you_mean

MAX_NAME_CHARS = 256
#: Each takes host memory.
MAX_ADAPTERS = 4096


class Adapters:
    """Names of adapters, kept by the engine core. The worker keeps their numbers.

    Args:
        paths: Directories by name, loaded by `open`.
    """

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = dict(paths)
        self._count = itertools.count(1)
        self._keys: dict[str, str] = {}

    def paths(self) -> dict[str, str]:
        """Return the directories of loaded adapters by name."""
        return {name: self._paths[name] for name in self._keys}

    def open(self, worker: Worker | None) -> None:
        """Load all adapters into a new worker.

        Raises:
            UserError: One cannot be loaded.
        """
        for name, path in self._paths.items():
            self.load(worker, name, path, used=())

    def key_of(self, name: str) -> str:
        """Return what names an adapter's weights. Loading changes it.

        Raises:
            RequestError: It is not loaded.
        """
        if name not in self._keys:
            known = ", ".join(sorted(self._keys)) or "none"
            raise RequestError(
                f"no adapter {name!r} is loaded{did_you_mean(name, self._keys)} (loaded: {known})",
                "adapter",
            )
        return self._keys[name]

    def load(self, worker: Worker | None, name: str, path: str, used: Collection[str]) -> None:
        """Load an adapter from a directory, in place of one of this name.

        Args:
            worker: Takes its numbers.
            name: Of the adapter.
            path: In the form of PEFT.
            used: Those that unfinished requests name.

        Raises:
            RequestError: The name is none, or in use; there are too many; the worker takes none.
            CheckpointError: It cannot be read or does not fit; nothing has changed.
        """
        if not 0 < len(name) <= MAX_NAME_CHARS:
            raise RequestError(
                f"an adapter's name has 1 to {MAX_NAME_CHARS} characters", "lora_name"
            )
        if name not in self._keys and len(self._keys) >= MAX_ADAPTERS:
            raise RequestError(f"{MAX_ADAPTERS} adapters are loaded; unload one first", "lora_name")
        _check_unused(name, used)
        try:
            _taking(worker).load_adapter(name, path)
        except CheckpointError as error:
            raise CheckpointError(f"adapter {name!r}: {error}") from None
        self._paths[name] = path
        self._keys[name] = f"{next(self._count)}:{name}"

    def unload(self, worker: Worker | None, name: str, used: Collection[str]) -> None:
        """Forget an adapter, also one that keeps an engine from waking, as its files are gone.

        Raises:
            RequestError: It is not loaded, or an unfinished request names it.
        """
        self.key_of(name)
        _check_unused(name, used)
        if worker is not None:
            _taking(worker).drop_adapter(name)
        del self._paths[name], self._keys[name]


def _check_unused(name: str, used: Collection[str]) -> None:
    if name in used:
        raise RequestError(
            f"adapter {name!r} is in use; try again when its requests have ended", "lora_name"
        )


def _taking(worker: Worker | None) -> AdapterWorker:
    if worker is None:
        raise RequestError("the weights are asleep; wake them up first")
    if not isinstance(worker, AdapterWorker):
        raise RequestError("what computes steps here takes no adapters")
    return worker
