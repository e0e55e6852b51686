"""Two processes that run transformers' code give the tokens of one, divided either way."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.test_tensor_parallel import BUSY, answers, rank_pids, running

from hotshoe import LLM

pytestmark = [
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two processors"),
    pytest.mark.slow,  # each process imports transformers
]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield
    assert [*tmp_path.iterdir(), *Path("/dev/shm").glob("*hotshoe*")] == []


def open_code(model_dir: Path, **options: object) -> LLM:
    settings = {"load_format": "dummy", "max_num_seqs": 8, "seed": 3, "platform": "cpu", **BUSY}
    settings |= {"model_impl": "transformers", "hf_overrides": {"model_type": "llama"}}
    return LLM(str(model_dir), **settings, **options)


@pytest.fixture(scope="module")
def alone(model_dir: Path) -> tuple[list[list[int]], int]:
    """Return the tokens of one process, and the bytes of its weights."""
    with open_code(model_dir) as llm:
        return answers(llm), llm.memory["weights"]


@pytest.mark.parametrize("axis", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_tokens_are_those_of_one_process(model_dir: Path, alone, axis: str) -> None:
    expected, whole = alone
    with open_code(model_dir, **{axis: 2}) as llm:
        pids = rank_pids(llm)
        assert answers(llm) == expected
        assert answers(llm) == expected  # now with a warm cache
        assert llm.engine.core.stats().num_hit_tokens > 0
        assert llm.memory["weights"] < 0.6 * whole
    assert running(pids) == []
