"""Whole models on the platform: greedy tokens against core's references on the host.

The references read what the platform wrote, as a prompt, and say how likely each token was: it has
to be the likeliest, or as likely within rounding. So one flipped near-tie does not hide or fake
what follows it.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hotshoe import LLM, SamplingParams
from hotshoe.foreign import ForeignError, foreign
from hotshoe.plugins import PluginManager
from hotshoe.types import RequestOutput, TokenLogprobs, TokensPrompt
from hotshoe_conformance.checkpoint import MODELS, write_model
from hotshoe_conformance.host import PLATFORM, host_plugins
from hotshoe_conformance.report import Defect

PROMPT_LENGTHS = (1, 5, 33, 17, 64, 2)
NUM_TOKENS = 24
#: How much less likely than the likeliest a token may be, in natural logarithms, by type. Rounding
#: to bfloat16 costs one of 300 tokens more than 0.1, and a quarter of these for every 0.05 more.
MARGINS = {"float32": 2e-3, "bfloat16": 0.6}


@dataclass(frozen=True, slots=True)
class Run:
    """One way to run a model. Every one has to write the same."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"


RUNS = (
    Run("all at once"),
    Run("prompts in chunks", {"max_num_batched_tokens": 16, "max_num_seqs": 4}),
    Run(
        "a small cache, which preempts", {"max_model_len": 96, "block_size": 16, "max_num_seqs": 6}
    ),
    Run("steps that overlap", {"async_scheduling": True, "max_num_batched_tokens": 40}),
    Run("bfloat16", {}, "bfloat16"),
)
#: The cache of the run that preempts: blocks of its longest sequence, and a few.
SMALL_CACHE_BLOCKS = 9


class RunOptions(Protocol):
    """What this module reads of the kit's options."""

    quick: bool
    platform_options: dict[str, Any]


def token_defects(
    platform: str,
    plugins: PluginManager,
    seed: int,
    options: RunOptions,
    late: Callable[[str], bool] = lambda what: False,
) -> list[Defect]:
    """Return what is wrong with the tokens that models write on a platform.

    Args:
        platform: Its name.
        plugins: All of this process.
        seed: Of weights and prompts.
        options: Of the kit.
        late: Is told of each run before it begins; true leaves it out.
    """
    host = host_plugins()
    models = list(MODELS)[:1] if options.quick else list(MODELS)
    rng = random.Random(f"{seed}/tokens")
    prompts = [
        [rng.randrange(MODELS["llama"]["vocab_size"]) for _ in range(n)] for n in PROMPT_LENGTHS
    ]
    found: list[Defect] = []
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            path = write_model(model, Path(folder) / model, host, seed)
            oracle = {"model": str(path), "platform": PLATFORM, "dtype": "float32"}
            runs = RUNS if model == models[0] else (RUNS[0], RUNS[1])
            with LLM(plugins=host, skip_tokenizer_init=True, max_logprobs=1, **oracle) as judge:
                for run in runs:
                    if late("runs of tiny models"):
                        continue
                    place = {"model": str(path), "platform": platform}
                    extra = {"platform_options": options.platform_options}
                    found += _run(run, {**place, **extra}, plugins, judge, prompts, model)
    return found


def _run(
    run: Run,
    place: Mapping[str, Any],
    plugins: PluginManager,
    judge: LLM,
    prompts: Sequence[list[int]],
    model: str,
) -> list[Defect]:
    shape = f"{model}, {run.name}"
    settings = {**place, **run.options, "dtype": run.dtype, "skip_tokenizer_init": True}
    if "small cache" in run.name:
        settings["kv_cache_memory_bytes"] = SMALL_CACHE_BLOCKS * judge.engine.core.info.block_bytes
        settings["block_size"] = judge.config.block_size
    try:
        with foreign(), LLM(plugins=plugins, **settings) as llm:
            outputs = _write(llm, prompts)
            own = llm.engine.setup.platform.create_worker(llm.config) is not None
            again = _write(llm, prompts) if own else outputs
    except ForeignError as failed:  # whatever stops a model here is the finding
        return [Defect(str(failed), shape=shape)]
    found = []
    for ids, output in zip(prompts, outputs, strict=True):
        sequence = output.outputs[0]
        if sequence.error is not None or len(sequence.token_ids) != NUM_TOKENS:
            what = f"{len(sequence.token_ids)} of {NUM_TOKENS} tokens: {sequence.error}"
            found.append(Defect(what, shape=shape))
        elif not own and (what := _unlikely(judge, ids, sequence.token_ids, MARGINS[run.dtype])):
            found.append(Defect(what, shape=f"{shape}, prompt of {len(ids)} tokens"))
    # A worker of the platform's own runs a model that nobody else has; it can only be asked twice.
    if [o.outputs[0].token_ids for o in outputs] != [o.outputs[0].token_ids for o in again]:
        found.append(Defect("the same prompts give other tokens when run again", shape=shape))
    return found[:1]


def _write(llm: LLM, prompts: Sequence[list[int]]) -> list[RequestOutput]:
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    return llm.generate([TokensPrompt(ids) for ids in prompts], params)


def _unlikely(judge: LLM, prompt: list[int], written: list[int], margin: float) -> str:
    """Say which token the references would not have written, empty if they agree with all."""
    vocab_size = judge.engine.core.info.vocab_size
    if foreign := [token for token in written if not 0 <= token < vocab_size]:
        return f"token {foreign[0]} lies outside the vocabulary of {vocab_size}"
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
    [output] = judge.generate([TokensPrompt([*prompt, *written])], params)
    assert output.prompt_logprobs is not None
    for at, entry in enumerate(output.prompt_logprobs[len(prompt) :]):
        assert isinstance(entry, TokenLogprobs)
        lost = entry.logprobs[1] - entry.logprobs[0]
        if not lost <= margin:  # NaN is no answer
            return (
                f"token {at} is {written[at]}, by {lost:.3g} less likely than "
                f"{entry.token_ids[1]} (allowed: {margin})"
            )
    return ""
