"""Weights that change while an engine lives: it answers as a fresh one, or nothing has changed."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hotshoe import LLM, AsyncEngine, EngineConfig, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError, RequestError
from hotshoe.loader.shared import shared_weights
from hotshoe_conformance.checkpoint import write_model
from hotshoe_conformance.host import host_plugins

PROMPTS = [TokensPrompt([(7 * i + n) % 320 for i in range(20 + n)]) for n in range(3)]
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
OPTIONS = {"platform": "cpu", "skip_tokenizer_init": True, "max_num_seqs": 4, "max_model_len": 128}
#: Steps recorded or not, numbers quantized or not, a model with norms of q and k and tied weights.
CASES = [
    ("llama", {}),
    ("llama", {"enforce_eager": True}),
    ("qwen3", {"dtype": "bfloat16"}),
    ("llama", {"quantization": "int8"}),
    ("gemma2", {"kernel": {"linear": "reference"}}),
]
Open = Callable[..., LLM]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """Write tiny checkpoints, each once."""
    root, plugins = tmp_path_factory.mktemp("models"), host_plugins()

    def path(name: str, seed: int) -> Path:
        found = root / f"{name}-{seed}"
        return found if found.exists() else write_model(name, found, plugins, seed)

    return path


@pytest.fixture
def open_llm() -> Iterator[Open]:
    opened: list[LLM] = []

    def start(path: Path, **options: object) -> LLM:
        opened.append(LLM(str(path), **OPTIONS | options))
        return opened[-1]

    yield start
    for llm in opened:
        llm.close()


def answers(llm: LLM) -> list[list[int]]:
    return [result.outputs[0].token_ids for result in llm.generate(PROMPTS, PARAMS)]


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "model.safetensors")


@pytest.mark.parametrize(("name", "options"), CASES)
def test_answers_are_those_of_a_fresh_engine(models, open_llm: Open, name: str, options) -> None:
    old, new = models(name, 1), models(name, 2)
    llm, fresh = open_llm(old, **options), open_llm(new, **options)
    before, wanted = answers(llm), answers(fresh)
    assert before != wanted
    llm.update_weights(tensors_of(new).items())
    assert answers(llm) == wanted
    llm.update_weights(old)
    assert answers(llm) == before


def test_a_running_request_is_computed_anew(models, open_llm: Open) -> None:
    llm, fresh = open_llm(models("llama", 1)), open_llm(models("llama", 2))
    stream = llm.stream(PROMPTS[0], PARAMS)
    first = [next(stream) for _ in range(3)][-1].output().outputs[0].token_ids
    llm.update_weights(models("llama", 2))
    *_, last = stream
    found = last.output().outputs[0].token_ids
    # Steps under way were finished with the old weights; the rest is what the new ones say.
    kept = next(n for n in range(len(first), len(found)) if _continues(fresh, found, n))
    assert kept - len(first) <= 2


def _continues(llm: LLM, tokens: list[int], count: int) -> bool:
    """Tell whether a model goes on like this after so many tokens."""
    prompt = TokensPrompt([*PROMPTS[0].token_ids, *tokens[:count]])
    params = SamplingParams(temperature=0, max_tokens=len(tokens) - count, ignore_eos=True)
    return llm.generate(prompt, params)[0].outputs[0].token_ids == tokens[count:]


NAME = "model.layers.1.self_attn.k_proj.weight"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: {**t, NAME: t[NAME].T.contiguous()},
        lambda t: {**t, NAME: t[NAME].to(torch.int8)},
        lambda t: {**t, "model.layers.9.x": torch.ones(1)},
        lambda t: {n: v for n, v in t.items() if n != NAME},
    ],
)
def test_one_wrong_tensor_changes_nothing(models, open_llm: Open, tmp_path: Path, spoil) -> None:
    llm = open_llm(models("llama", 1))
    before = answers(llm)
    wrong = spoil(tensors_of(models("llama", 2)))
    save_file(wrong, tmp_path / "model.safetensors")
    for weights in (wrong.items(), tmp_path):
        with pytest.raises(CheckpointError, match=r"layers\.(1\.self_attn\.k_proj|9\.x)"):
            llm.update_weights(weights)
    assert answers(llm) == before


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("mode", ["keep", "wait", "abort"])
def test_sleep_and_wake(models, open_llm: Open, level: int, mode: str) -> None:
    llm = open_llm(models("llama", 1))
    wanted = answers(llm)
    stream = llm.stream(PROMPTS[0], PARAMS)
    next(stream)
    llm.sleep(level, mode)
    assert llm.is_sleeping and not llm.is_paused
    llm.wake_up(["weights"])
    if level:
        assert llm.is_sleeping
        llm.wake_up(["kv_cache"])
    else:
        llm.wake_up(["scheduling"])
    assert not llm.is_sleeping
    *_, last = stream
    result = last.output().outputs[0]
    assert (result.finish_reason.value == "abort") == (mode == "abort")
    assert result.token_ids == wanted[0][: len(result.token_ids)]
    assert answers(llm) == wanted
    llm.wake_up()  # harmless


def test_new_weights_outlive_a_sleep_that_keeps_them(models, open_llm: Open) -> None:
    llm, fresh = open_llm(models("llama", 1)), open_llm(models("llama", 2))
    before, wanted = answers(llm), answers(fresh)
    llm.sleep(1)
    with pytest.raises(RequestError, match="the weights are asleep; wake them up first"):
        llm.update_weights(models("llama", 2))
    llm.wake_up(["weights"])
    llm.update_weights(models("llama", 2))
    llm.wake_up(["kv_cache"])
    assert answers(llm) == wanted
    llm.sleep(1)
    llm.sleep(1)
    llm.wake_up()
    assert answers(llm) == wanted
    llm.sleep(1)
    llm.sleep(2)  # the checkpoint's come back
    llm.wake_up()
    assert answers(llm) == before


@pytest.mark.slow  # starts two processes
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two processors")
def test_two_ranks_change_together(models, open_llm: Open) -> None:
    options = {"tensor_parallel_size": 2}
    old, new = models("llama", 1), models("llama", 2)
    llm, fresh = open_llm(old, **options), open_llm(new)
    before, wanted = answers(llm), answers(fresh)
    tensors = tensors_of(new)
    with pytest.raises(CheckpointError, match="k_proj"):
        llm.update_weights([(n, t) for n, t in tensors.items() if n != NAME])
    assert answers(llm) == before
    llm.update_weights(tensors.items())
    assert answers(llm) == wanted
    llm.sleep(1)
    llm.wake_up()
    assert answers(llm) == wanted


def test_over_a_socket_from_shared_memory(models) -> None:
    old, new = models("llama", 1), models("llama", 2)
    config = EngineConfig.from_mapping({"model": str(old), **OPTIONS})

    async def run() -> list[list[int]]:
        engine = AsyncEngine(config)
        try:
            found = [await _ask(engine)]
            await engine.sleep(1, "wait")
            await engine.wake_up()
            with pytest.raises(CheckpointError, match="k_proj"):
                await engine.update_weights([(NAME, torch.ones(3))])
            await engine.update_weights(tensors_of(new).items())
            found.append(await _ask(engine))
            with shared_weights(tensors_of(old).items()) as path:
                await engine.update_weights(path)
            with pytest.raises(CheckpointError):
                await engine.update_weights(path)  # it has gone
            return [*found, await _ask(engine)]
        finally:
            engine.close()

    first, second, third = asyncio.run(run())
    assert first == third != second


async def _ask(engine: AsyncEngine) -> list[int]:
    updates = [update async for update in engine.generate(PROMPTS[0], PARAMS)]
    return updates[-1].output().outputs[0].token_ids
