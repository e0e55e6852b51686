"""Two processes give the tokens of one: whatever the settings, until one of them is killed."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import ConfigError, EngineDeadError, SelectionError

pytestmark = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two processors")

LENGTH = 24
EXIT_S = 20.0
PARAMS = [
    SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True),
    SamplingParams(temperature=0, repetition_penalty=1.5, max_tokens=LENGTH, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=11, top_k=20, max_tokens=LENGTH, ignore_eos=True),
]
SHARED = [(7 * i) % 256 for i in range(48)]
BLOCK_BYTES = 1 << 13  # 16 tokens * 2 layers * 2 heads * 16 channels * 2 (K and V) * 4 bytes
#: Prompts in chunks, prefix hits, preemptions, and two steps under way.
BUSY = {"block_size": 16, "max_model_len": 112, "max_num_batched_tokens": 16}


def workload() -> list[tuple[TokensPrompt, SamplingParams]]:
    rng = random.Random(5)
    prompts = []
    for number in range(9):
        own = [rng.randrange(256) for _ in range(rng.choice((1, 5, 16, 40)))]
        prompts.append((TokensPrompt([*SHARED, *own] if number % 2 else own), PARAMS[number % 3]))
    return prompts


def answers(llm: LLM) -> list[list[int]]:
    outputs = llm.generate(*map(list, zip(*workload(), strict=True)))
    assert all(output.outputs[0].error is None for output in outputs)
    return [output.outputs[0].token_ids for output in outputs]


def open_dummy(model_dir: Path, size: int, **options: object) -> LLM:
    settings = {"load_format": "dummy", "max_num_seqs": 8, "seed": 3, "platform": "cpu", **options}
    return LLM(str(model_dir), tensor_parallel_size=size, **settings)


def rank_pids(llm: LLM) -> list[int]:
    return [rank.process.pid for rank in llm.engine.core.workers.main._group.ranks]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give groups and engines a place of this test's own, which is empty in the end."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield
    assert [*tmp_path.iterdir(), *Path("/dev/shm").glob("*hotshoe*")] == []


def running(pids: list[int]) -> list[int]:
    """Return those that run; an orphan that has ended may not have been waited for yet."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text()
            found += [] if stat.rpartition(")")[2].split()[0] == "Z" else [pid]
    return found


def test_tokens_are_those_of_one_process(model_dir: Path) -> None:
    with open_dummy(model_dir, 1, **BUSY) as llm:
        expected = answers(llm)
        whole = llm.memory["weights"]
    # Each rank has one of two KV heads, so that a block takes half as much.
    with open_dummy(model_dir, 2, **BUSY, kv_cache_memory_bytes=10 * BLOCK_BYTES // 2) as llm:
        pids = rank_pids(llm)
        assert answers(llm) == expected
        assert answers(llm) == expected  # now with a warm cache
        stats = llm.engine.core.stats()
        assert stats.num_preemptions > 0 and stats.num_hit_tokens > 0
        assert llm.config.async_scheduling
        assert llm.memory["weights"] < 0.6 * whole  # each rank has the table of embeddings whole
        chosen = {d.slot: d.chosen for d in llm.decisions}
        assert chosen["communicator"] == "shared_memory"
    assert running(pids) == []


def test_drafts_change_no_token_of_several_ranks(model_dir: Path) -> None:
    drafts = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "adaptive": False,
        "prompt_lookup_max": 2,
    }
    with open_dummy(model_dir, 1, **BUSY) as llm:
        expected = answers(llm)
    with open_dummy(model_dir, 2, **BUSY, speculative_config=drafts) as llm:
        assert answers(llm) == expected
        assert 0 < llm.stats().num_accepted_tokens < llm.stats().num_draft_tokens


def test_the_demo_model_answers_alike() -> None:
    chats = [
        [{"role": "user", "content": "What is 17 + 25?"}],
        [{"role": "user", "content": "Name three colours."}],
    ]
    params = SamplingParams(temperature=0, max_tokens=24, logprobs=2)
    texts = {}
    for size in (1, 2):
        with LLM("demo", platform="cpu", dtype="float32", tensor_parallel_size=size) as llm:
            found = [llm.chat(chat, params)[0].outputs[0] for chat in chats]
            texts[size] = [output.text for output in found]
            assert all(len(output.logprobs) == len(output.token_ids) for output in found)
    assert texts[1] == texts[2]


@pytest.mark.slow
def test_int8_over_the_reference_communicator(model_dir: Path) -> None:
    """Every rank quantizes its own part, so tokens may differ from those of one process."""
    found = []
    for communicator in ("shared_memory", "reference"):
        kernel = {"communicator": communicator}
        with open_dummy(model_dir, 2, quantization="int8", kernel=kernel, **BUSY) as llm:
            found.append(answers(llm))
            chosen = {d.slot: d.chosen for d in llm.decisions}
            assert chosen["communicator"] == communicator
    assert found[0] == found[1]


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_rank_ends_the_engine(model_dir: Path, rank: int) -> None:
    llm = open_dummy(model_dir, 2)
    pids = rank_pids(llm)
    stream = llm.stream(TokensPrompt([1, 2, 3]), SamplingParams(max_tokens=200, ignore_eos=True))
    next(stream)
    os.kill(pids[rank], signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(EngineDeadError, match=f"rank {rank} of 2 was killed"):
        list(stream)
    assert time.monotonic() - begin < EXIT_S
    assert running(pids) == []
    with pytest.raises(EngineDeadError, match=f"rank {rank} of 2 was killed"):
        llm.generate(TokensPrompt([1]))
    llm.close()


def test_ranks_end_when_the_engine_is_killed(model_dir: Path) -> None:
    code = f"""
from hotshoe import LLM, SamplingParams, TokensPrompt
llm = LLM({str(model_dir)!r}, load_format="dummy", platform="cpu", tensor_parallel_size=2)
print(*[rank.process.pid for rank in llm.engine.core.workers.main._group.ranks], flush=True)
while True:
    llm.generate([TokensPrompt([1])] * 100, SamplingParams(max_tokens=200, ignore_eos=True))
"""
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    assert len(pids) == 2
    time.sleep(0.3)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + EXIT_S
    while running(pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert running(pids) == []


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"platform": "null"}, ConfigError, "platform null runs on one device"),
        ({"platform_options": {"threads": 1}}, ConfigError, "2 workers cannot share 1 threads"),
        ({"kernel": {"communicator": "x"}}, SelectionError, "no candidate 'x'"),
    ],
)
def test_what_cannot_work_is_refused_before_processes_start(
    model_dir: Path, options: dict, error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        open_dummy(model_dir, 2, **options)


def test_heads_that_do_not_divide_are_refused(model_dir: Path) -> None:
    overrides = {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 16}
    with pytest.raises(ConfigError, match=r"does not divide the model's 3 .*use 1 or 3 \(rank"):
        open_dummy(model_dir, 2, hf_overrides=overrides)
