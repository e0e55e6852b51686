"""Two hosts that are one here: the second runs `hotshoe join`, and only a port is between them."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.test_tensor_parallel import BUSY, answers, running

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.engine.ranks.agent import free_port
from hotshoe.errors import EngineDeadError

pytestmark = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two processors")

END_S = 5.0
#: As `hotshoe join` where ranks share nothing with those of the other host.
APART = """
import sys
from hotshoe.engine.ranks import agent
from hotshoe.cli.__main__ import run
agent.host_identity = lambda: "another"
sys.argv[0] = "hotshoe"
sys.exit(run())
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """Options of the engine; in the end nothing is left."""
    folder = tmp_path / "made"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    secret = tmp_path / "secret"
    secret.write_bytes(os.urandom(32))
    secret.chmod(0o600)
    yield {"nnodes": 2, "master_port": free_port("127.0.0.1"), "cluster_secret_file": str(secret)}
    deadline = time.monotonic() + END_S
    while list(folder.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(folder.iterdir()) == []


def joined(place: dict[str, object], *program: str) -> subprocess.Popen[bytes]:
    words = ["join", "--node-rank", "1", "--master-addr", "127.0.0.1", "--master-port"]
    words += [str(place["master_port"]), "--cluster-secret-file", str(place["cluster_secret_file"])]
    return subprocess.Popen([sys.executable, *(program or ("-m", "hotshoe.cli")), *words])


def open_llm(model_dir: Path, **options: object) -> LLM:
    settings = {"load_format": "dummy", "max_num_seqs": 8, "seed": 3, "platform": "cpu", **options}
    return LLM(str(model_dir), **settings)


def children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        fields = path.read_text().rpartition(")")[2].split() if path.exists() else ["", ""]
        found += [int(path.parent.name)] if fields[1] == str(pid) else []
    return found


def test_a_lost_host_ends_the_engine(model_dir: Path, place: dict[str, object]) -> None:
    other = joined(place)
    llm = open_llm(model_dir, pipeline_parallel_size=2, **place)
    ranks = children(other.pid)
    assert len(ranks) == 1
    stream = llm.stream(TokensPrompt([1, 2, 3]), SamplingParams(max_tokens=200, ignore_eos=True))
    next(stream)
    os.kill(other.pid, signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(EngineDeadError, match="rank 1 of 2 went with node 1 at 127"):
        list(stream)
    assert time.monotonic() - begin < END_S
    other.wait()
    llm.close()
    while running(ranks) and time.monotonic() < begin + END_S:
        time.sleep(0.02)
    assert running(ranks) == []


@pytest.mark.slow  # starts three engines
@pytest.mark.parametrize("axis", ["pipeline_parallel_size", "tensor_parallel_size"])
def test_tokens_are_those_of_one_host(model_dir: Path, place: dict[str, object], axis: str) -> None:
    with open_llm(model_dir, **BUSY) as llm:
        expected = answers(llm)
    for program, communicator in (((), "shared_memory"), (("-c", APART), "reference")):
        other = joined(place, *program)
        with open_llm(model_dir, **BUSY, **place, **{axis: 2}) as llm:
            assert answers(llm) == expected
            chosen = {d.slot: d.chosen for d in llm.decisions}
            assert chosen["communicator"] == communicator
        assert other.wait(20) == 0
