"""The whole engine in one thread: prompts in, text out. `LLM` and `AsyncEngine` drive it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from hotshoe.config import EngineConfig
from hotshoe.engine.core import EngineCore
from hotshoe.engine.inputs import InputProcessor
from hotshoe.engine.setup import EngineSetup, prepare
from hotshoe.errors import RequestError
from hotshoe.plugins import PluginManager
from hotshoe.text.output_processor import OutputProcessor, RequestUpdate
from hotshoe.text.tokenizer import Tokenizer
from hotshoe.types import Prompt, SamplingParams


class Engine:
    """Input processor, engine core and output processor as one object.

    Args:
        config: The configuration; it is resolved here.
        plugins: Default: those installed.

    Raises:
        UserError: It cannot work; the message says why.
    """

    def __init__(self, config: EngineConfig, plugins: PluginManager | None = None) -> None:
        begin = time.perf_counter()
        setup = prepare(config, plugins)
        prepared = time.perf_counter()
        path = Path(config.tokenizer) if config.tokenizer else setup.model_config.path
        self.tokenizer = None if config.skip_tokenizer_init else Tokenizer.load(path)
        self.setup = setup = _with_eos(setup, self.tokenizer)
        tokenised = time.perf_counter()
        self.core = EngineCore(setup)
        self.startup = {
            "resolve configuration": prepared - begin,
            "load tokenizer": tokenised - prepared,
            **self.core.startup,
        }
        self.inputs = InputProcessor(
            setup.config,
            self.core.info.vocab_size,
            setup.model_config.eos_token_ids,
            self.tokenizer,
        )
        self._outputs = OutputProcessor(self.tokenizer)

    def add(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        priority: int = 0,
        tenant: str | None = None,
    ) -> None:
        """Take in a request.

        Raises:
            RequestError: It is malformed or could never be served; nothing was queued.
        """
        if request_id in self._outputs:
            raise RequestError(f"request id {request_id!r} is in use", "request_id")
        prepared = self.inputs.prepare(request_id, prompt, params, priority, tenant)
        added: list[str] = []
        try:
            for sequence in prepared.sequences:
                self.core.add(sequence)
                added.append(sequence.request_id)
        except Exception:
            self.core.abort(added)
            raise
        self._outputs.add(
            request_id, prepared.prompt, prepared.prompt_token_ids, prepared.params, added
        )

    def abort(self, request_id: str) -> None:
        """Drop a request at once; unknown ids are ignored."""
        self.core.abort(self._outputs.abort(request_id))

    def has_work(self) -> bool:
        """Tell whether `step` has something to do."""
        return self.core.has_work()

    def step(self) -> list[RequestUpdate]:
        """Run one step and return what the requests gained by it."""
        updates, stopped = self._outputs.process(self.core.step())
        if stopped:
            self.core.abort(stopped)
        return updates

    def close(self) -> None:
        """Release the device."""
        self.core.close()


def _with_eos(setup: EngineSetup, tokenizer: Tokenizer | None) -> EngineSetup:
    """Join the end-of-sequence ids of the tokenizer to those of the model."""
    ids = (*setup.model_config.eos_token_ids, *(tokenizer.eos_token_ids if tokenizer else ()))
    joined = tuple(dict.fromkeys(ids))
    return replace(setup, model_config=replace(setup.model_config, eos_token_ids=joined))
