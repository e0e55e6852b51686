"""The whole engine in one thread: prompts in, text out. `LLM` and `AsyncEngine` drive it."""

from __future__ import annotations

import time
from pathlib import Path

from hotshoe.config import EngineConfig
from hotshoe.engine.core import EngineCore
from hotshoe.engine.inputs import InputProcessor
from hotshoe.engine.setup import prepare
from hotshoe.plugins import PluginManager
from hotshoe.text.output_processor import OutputProcessor
from hotshoe.text.tokenizer import Tokenizer
from hotshoe.types import Prompt, RequestOutput, SamplingParams


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
        self.setup = setup
        prepared = time.perf_counter()
        path = Path(config.tokenizer) if config.tokenizer else setup.model_config.path
        self.tokenizer = None if config.skip_tokenizer_init else Tokenizer.load(path)
        tokenised = time.perf_counter()
        self.core = EngineCore(setup)
        self.startup = {
            "resolve configuration": prepared - begin,
            "load tokenizer": tokenised - prepared,
            **self.core.startup,
        }
        eos = set(setup.model_config.eos_token_ids)
        if self.tokenizer is not None and not eos and self.tokenizer.eos_token_id is not None:
            eos.add(self.tokenizer.eos_token_id)
        self.inputs = InputProcessor(
            setup.config, self.core.info.vocab_size, sorted(eos), self.tokenizer
        )
        self._outputs = OutputProcessor(self.tokenizer)
        self._sequences: dict[str, list[str]] = {}

    def add(
        self, request_id: str, prompt: Prompt, params: SamplingParams, priority: int = 0
    ) -> None:
        """Take in a request.

        Raises:
            RequestError: It is malformed or could never be served; nothing was queued.
        """
        prepared = self.inputs.prepare(request_id, prompt, params, priority)
        added: list[str] = []
        try:
            for sequence in prepared.sequences:
                self.core.add(sequence)
                added.append(sequence.request_id)
        except Exception:
            self.core.abort(added)
            raise
        self._sequences[request_id] = added
        self._outputs.add(
            request_id, prepared.prompt, prepared.prompt_token_ids, prepared.params, added
        )

    def abort(self, request_id: str) -> None:
        """Drop a request at once; unknown ids are ignored."""
        self.core.abort(self._sequences.pop(request_id, ()))
        self._outputs.abort(request_id)

    def has_work(self) -> bool:
        """Tell whether `step` has something to do."""
        return self.core.has_work()

    def step(self) -> list[RequestOutput]:
        """Run one step and return the requests that have news."""
        outputs, stopped = self._outputs.process(self.core.step())
        if stopped:
            self.core.abort(stopped)
        for output in outputs:
            if output.finished:
                self._sequences.pop(output.request_id, None)
        return outputs

    def close(self) -> None:
        """Release the device."""
        self.core.close()
