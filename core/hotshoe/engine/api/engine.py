"""The whole engine in one thread: prompts in, text out. `LLM` drives it.

`AsyncEngine` has the same two halves with a thread or a process between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from hotshoe.config import EngineConfig
from hotshoe.engine.api.inputs import InputProcessor
from hotshoe.engine.client import PauseMode
from hotshoe.engine.core.boot import boot
from hotshoe.errors import RequestError
from hotshoe.plugins import PluginManager
from hotshoe.text.output_processor import OutputProcessor, RequestUpdate
from hotshoe.types import FinishReason, PoolingParams, Prompt, SamplingParams, TokenOutput


class Engine:
    """Input processor, engine core and output processor as one object.

    Args:
        config: The configuration; it is resolved here.
        plugins: Default: those installed.

    Raises:
        UserError: It cannot work; the message says why.
    """

    def __init__(self, config: EngineConfig, plugins: PluginManager | None = None) -> None:
        booted = boot(config, plugins)
        self.core, self.tokenizer, self.info = booted.core, booted.tokenizer, booted.info
        self.setup = self.core.setup
        self.startup = self.info.startup
        self.inputs = InputProcessor(self.info, self.tokenizer)
        self._outputs = OutputProcessor(self.tokenizer)

    def add(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | PoolingParams,
        priority: int = 0,
        tenant: str | None = None,
    ) -> None:
        """Take in a request.

        Raises:
            RequestError: It is malformed or could never be served; nothing was queued.
            QueueFullError: Too much waits already.
        """
        if request_id in self._outputs:
            raise RequestError(f"request id {request_id!r} is in use", "request_id")
        new = self.inputs.prepare(request_id, prompt, params, priority, tenant)
        self.core.add(new.add)
        self._outputs.add(request_id, new.prompt, new.prompt_token_ids, new.params, new.add.ids)

    def abort(self, request_id: str) -> None:
        """Drop a request at once; unknown ids are ignored."""
        self.core.abort(self._outputs.abort(request_id))

    def has_work(self) -> bool:
        """Tell whether `step` has something to do."""
        return self.core.has_work()

    def step(self) -> list[RequestUpdate]:
        """Run one step and return what the requests gained by it."""
        return self._take(self.core.step())

    def pause(self, mode: PauseMode) -> list[RequestUpdate]:
        """Begin to pause, as `EngineCore.pause` says; return what requests gained by it.

        Raises:
            RequestError: The mode is unknown.
        """
        outputs = self.core.pause(mode)
        if mode == "abort":
            ids = self._outputs.running_ids
            self.core.abort(ids)
            outputs += [TokenOutput(i, [], finish_reason=FinishReason.ABORT) for i in ids]
        return self._take(outputs)

    def sleep(self, level: int) -> list[RequestUpdate]:
        """Fall asleep, as `EngineClient.sleep` says; return what requests gained by it.

        Raises:
            RequestError: The level is unknown or not offered.
        """
        return self._take(self.core.sleep(level))

    def quiesce(self) -> list[RequestUpdate]:
        """Finish the steps under way; return what requests gained by it."""
        return self._take(self.core.quiesce())

    def _take(self, outputs: Sequence[TokenOutput]) -> list[RequestUpdate]:
        updates, stopped = self._outputs.process(outputs)
        if stopped:
            self.core.abort(stopped)
        return updates

    def close(self) -> None:
        """Release the device."""
        self.core.close()
