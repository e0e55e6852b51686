"""An engine's calls, each of them a message: `EngineControl`, `EngineWeights` and `stats`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from hotshoe.engine.client import EngineStats, PauseMode, SleepMode

if TYPE_CHECKING:
    from hotshoe.loader.sources import Weights


class Control:
    """The calls of an `AsyncEngine`, which says how one is made."""

    async def _call(self, verb: str, **arguments: Any) -> Any:
        """Let the engine carry out a call between two steps, and return its result."""
        raise NotImplementedError

    async def abort_everywhere(self, request_ids: str | Iterable[str] | None = None) -> None:
        """See `EngineClient.abort_everywhere`."""
        ids = None if request_ids is None else listed(request_ids)
        await self._call("abort_everywhere", request_ids=ids)

    async def stats(self) -> EngineStats:
        """See `EngineClient.stats`."""
        return msgspec.convert(await self._call("stats"), EngineStats)

    async def pause(self, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
        """See `EngineClient.pause`."""
        await self._call("pause", mode=mode, clear_cache=clear_cache)

    async def resume(self) -> None:
        """See `EngineClient.resume`."""
        await self._call("resume")

    async def sleep(self, level: int = 1, mode: SleepMode = "keep") -> None:
        """See `EngineClient.sleep`."""
        await self._call("sleep", level=level, mode=mode)

    async def update_weights(self, weights: Weights) -> None:
        """See `EngineClient.update_weights`."""
        from hotshoe.loader.shared import shared_weights  # needs torch

        sharing = shared_weights(weights)
        path = await asyncio.to_thread(sharing.__enter__)
        try:
            await self._call("update_weights", path=path)
        finally:
            sharing.__exit__(None, None, None)

    async def load_adapter(self, name: str, path: str) -> None:
        """See `EngineClient.load_adapter`."""
        await self._call("load_adapter", name=name, path=path)

    async def unload_adapter(self, name: str) -> None:
        """See `EngineClient.unload_adapter`."""
        await self._call("unload_adapter", name=name)

    async def adapters(self) -> dict[str, str]:
        """See `EngineClient.adapters`."""
        return dict(await self._call("adapters"))

    async def wake_up(self, tags: Iterable[str] | None = None) -> None:
        """See `EngineClient.wake_up`."""
        await self._call("wake_up", tags=None if tags is None else list(tags))

    async def reset_prefix_cache(self, reset_running: bool = False) -> bool:
        """See `EngineClient.reset_prefix_cache`."""
        return bool(await self._call("reset_prefix_cache", reset_running=reset_running))

    async def start_profile(self, folder: str) -> None:
        """See `EngineClient.start_profile`."""
        await self._call("start_profile", folder=folder)

    async def stop_profile(self) -> str:
        """See `EngineClient.stop_profile`."""
        return str(await self._call("stop_profile"))


def listed(request_ids: str | Iterable[str]) -> list[str]:
    """Return ids as a list; one alone is not taken for its letters."""
    return [request_ids] if isinstance(request_ids, str) else list(request_ids)
