"""Engines of different platforms in one process: nothing of one shows in the other, and what one
has computed of a request the other can take over."""

import asyncio
import gc
import random
import signal
import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from hotshoe import LLM, AsyncEngine, EngineConfig, SamplingParams, TokensPrompt
from hotshoe.errors import KVTransferError, RequestError

LENGTH = 24
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.9, seed=11, max_tokens=LENGTH, ignore_eos=True)
PROMPT = TokensPrompt([(7 * i) % 256 for i in range(45)])
PAIRS = [("cpu", "plain"), ("plain", "cpu"), ("cpu", "cpu")]


@pytest.fixture
def open_on(model_dir, plugins) -> Callable[..., LLM]:
    def build(platform: str, **options: object) -> LLM:
        settings = {"load_format": "dummy", "max_num_seqs": 8, "seed": 3, **options}
        return LLM(str(model_dir), platform=platform, plugins=plugins, **settings)

    return build


def tokens(llm: LLM, prompt: TokensPrompt = PROMPT, params: SamplingParams = GREEDY) -> list[int]:
    return llm.generate(prompt, params)[0].outputs[0].token_ids


def global_state() -> dict[str, object]:
    """What a library might change for everybody in the process."""
    return {
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "torch rng": torch.get_rng_state().tolist(),
        "rng": random.getstate(),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "collector": (gc.isenabled(), gc.get_threshold()),
        "warnings": list(warnings.filters),
    }


def test_engines_take_turns(open_on) -> None:
    """Step by step, on two platforms and on the null platform, each gives what it gives alone."""
    before = global_state()
    alone = {}
    for name in ("cpu", "plain"):
        with open_on(name) as llm:
            alone[name] = [tokens(llm, params=params) for params in (GREEDY, SEEDED)]
    with open_on("cpu") as cpu, open_on("plain") as plain, open_on("null") as null:
        streams = {
            (name, i): llm.stream(PROMPT, params)
            for i, params in enumerate((GREEDY, SEEDED))
            for name, llm in (("cpu", cpu), ("plain", plain), ("null", null))
            if (name, i) != ("null", 1)
        }
        found: dict[tuple[str, int], list[int]] = {key: [] for key in streams}
        for _ in range(LENGTH):
            for key, stream in streams.items():
                found[key] = next(stream).output().outputs[0].token_ids
        assert global_state() == before
    for name in ("cpu", "plain"):
        assert [found[name, i] for i in (0, 1)] == alone[name]
    last = PROMPT.token_ids[-1]
    assert found["null", 0] == [(last + 1 + i) % 256 for i in range(LENGTH)]
    assert global_state() == before


def test_engines_run_at_once(model_dir, plugins, open_on) -> None:
    """In a thread each, and one that ends does not disturb the other."""
    expected = {}
    for name in ("cpu", "plain"):
        with open_on(name) as llm:
            expected[name] = tokens(llm)

    async def ask(engine: AsyncEngine, number: int) -> list[int]:
        found: list[int] = []
        async for update in engine.generate(PROMPT, GREEDY, str(number)):
            found = update.output().outputs[0].token_ids
        return found

    def start(name: str) -> AsyncEngine:
        settings = {"load_format": "dummy", "max_num_seqs": 8, "seed": 3}
        config = EngineConfig(str(model_dir), platform=name, **settings)
        return AsyncEngine(config, plugins)

    async def main() -> None:
        cpu, plain = start("cpu"), start("plain")
        both = await asyncio.gather(*(ask(e, i) for i in range(3) for e in (cpu, plain)))
        assert both == [expected["cpu"], expected["plain"]] * 3
        cpu.close()
        assert await ask(plain, 9) == expected["plain"]
        plain.close()

    asyncio.run(main())


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("sizes", [(16, 16), (16, 8), (8, 32)])
def test_a_request_goes_on_elsewhere(open_on, source: str, target: str, sizes: tuple) -> None:
    """Half of it is computed on one platform, the other half on another, from the first's cache."""
    with open_on("plain") as llm:
        whole = tokens(llm)
    with (
        open_on(source, block_size=sizes[0]) as there,
        open_on(target, block_size=sizes[1]) as here,
    ):
        stream = there.stream(PROMPT, GREEDY)
        begun = [next(stream) for _ in range(LENGTH // 2)][-1].output().outputs[0].token_ids
        there.engine.core.pause("keep")
        known = [*PROMPT.token_ids, *begun]
        blocks = there.engine.core.kv_exchange().give(known)
        assert blocks.token_ids == known[:48]  # the prompt has 45
        assert here.engine.core.kv_exchange().take(blocks) == ""
        here.engine.core._scheduler.check()
        rest = tokens(
            here,
            TokensPrompt(known),
            SamplingParams(temperature=0, max_tokens=LENGTH - len(begun), ignore_eos=True),
        )
        hits = here.engine.core.stats().num_hit_tokens
        there.engine.core.resume()
        assert begun + rest == whole == list(stream)[-1].output().outputs[0].token_ids
    assert hits == len(blocks.token_ids) // sizes[1] * sizes[1] >= 32


@pytest.mark.parametrize(("target", "cost"), [("int8", ""), ("bfloat16", "8 significant bits")])
def test_a_prompt_of_a_cache_of_8_bits_goes_on_elsewhere(open_on, target: str, cost: str) -> None:
    with (
        open_on("cpu", kv_cache_dtype="int8", block_size=8) as there,
        open_on("cpu", kv_cache_dtype=target, block_size=16) as here,
    ):
        whole = tokens(there)
        blocks = there.engine.core.kv_exchange().give(PROMPT.token_ids)
        assert cost in here.engine.core.kv_exchange().take(blocks)
        found = tokens(here)
        assert here.engine.core.stats().num_hit_tokens == 32
    assert cost or found == whole


def test_the_cache_is_really_used(open_on) -> None:
    """Other keys and values give other tokens."""
    with open_on("cpu") as there, open_on("plain") as here:
        whole = tokens(there)
        blocks = there.engine.core.kv_exchange().give(PROMPT.token_ids)
        here.engine.core.kv_exchange().take(
            replace(blocks, layers=[[-part for part in layer] for layer in blocks.layers])
        )
        assert tokens(here) != whole


def test_blocks_are_held_back_from_other_tenants(open_on) -> None:
    with open_on("cpu") as there, open_on("plain") as here:
        there.generate(TokensPrompt(PROMPT.token_ids, cache_salt="a"), GREEDY)
        assert there.engine.core.kv_exchange().give(PROMPT.token_ids).token_ids == []
        blocks = there.engine.core.kv_exchange().give(PROMPT.token_ids, cache_salt="a")
        assert len(blocks.token_ids) == 32
        here.engine.core.kv_exchange().take(blocks, cache_salt="a")
        tokens(here)
        assert here.engine.core.stats().num_hit_tokens == 0


def test_little_room_takes_the_first_blocks(open_on) -> None:
    """What is in use stays; nothing is refused."""
    # Three blocks of 8 KiB and the gaps between them; not four.
    small = {"block_size": 16, "max_model_len": 48, "kv_cache_memory_bytes": 7 << 12}
    with open_on("plain", block_size=16) as there, open_on("cpu", **small) as here:
        whole = tokens(there, params=SEEDED)
        busy = here.stream(TokensPrompt([5]), SEEDED)  # holds one block of three
        next(busy)
        blocks = there.engine.core.kv_exchange().give([*PROMPT.token_ids, *whole])
        assert len(blocks.layers[0][0]) == 4
        here.engine.core.kv_exchange().take(blocks)
        here.engine.core._scheduler.check()
        assert here.engine.core.stats().num_used_blocks == 1
        assert len(here.engine.core.kv_exchange().give(PROMPT.token_ids).token_ids) == 32


def test_what_cannot_be_taken_over_is_refused(open_on) -> None:
    with open_on("plain") as there, open_on("null") as null:
        tokens(there)
        blocks = there.engine.core.kv_exchange().give(PROMPT.token_ids)
        with pytest.raises(KVTransferError, match="use a platform with memory"):
            null.engine.core.kv_exchange().give(PROMPT.token_ids)
        for options, field in (
            ({"hf_overrides": {"rope_theta": 5000.0}}, "model"),
            ({"quantization": "int8"}, "model"),
            ({"enable_prefix_caching": False}, "enable_prefix_caching"),
        ):
            with open_on("cpu", **options) as here, pytest.raises(KVTransferError) as caught:
                here.engine.core.kv_exchange().take(blocks)
            assert caught.value.field == field
        with open_on("cpu", tensor_parallel_size=1, dtype="bfloat16") as here:
            assert "rounded" in here.engine.core.kv_exchange().take(blocks)
            with pytest.raises(RequestError, match="pause the engine first"):
                _with_a_step_under_way(here.engine.core)


def _with_a_step_under_way(core) -> None:
    core._in_flight.append(None)
    try:
        core.kv_exchange()
    finally:
        core._in_flight.clear()
