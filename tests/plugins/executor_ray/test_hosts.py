"""Stages on two Ray nodes that only a network connects: each is in a network namespace."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import EngineDeadError

#: How long Ray may take to start a node, and what is left of a node to end.
START_S, LEAVE_S = 60.0, 20.0
#: How long a node may be gone before an error says so.
END_S = 5.0
PROMPT = TokensPrompt([1, 2, 3])


class Namespace:
    """A network namespace that one cable connects with this one."""

    def __init__(self) -> None:
        number = secrets.randbelow(60_000)
        self.name = f"hr{number}"
        self.cable = f"{self.name}c"
        net = f"10.{number // 250 + 10}.{number % 250}"
        self.here, self.there = f"{net}.1", f"{net}.2"
        inside = ("-n", self.name)
        _ip("netns", "add", self.name)
        try:
            _ip("link", "add", self.cable, "type", "veth", "peer", "name", "cable")
            _ip("link", "set", "dev", "cable", "netns", self.name)
            for options, address, name in (
                ((), self.here, self.cable),
                (inside, self.there, "cable"),
            ):
                _ip(*options, "address", "add", f"{address}/24", "dev", name)
                _ip(*options, "link", "set", "dev", name, "up")
            _ip(*inside, "link", "set", "dev", "lo", "up")
        except subprocess.CalledProcessError:
            self.close()
            raise

    def cut(self) -> None:
        """Pull the cable."""
        _ip("link", "set", "dev", self.cable, "down")

    def pids(self) -> list[int]:
        """Return what runs there."""
        return [int(pid) for pid in _ip("netns", "pids", self.name).split()]

    def kill(self) -> None:
        """End everything there, as when a host loses power."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        _ip("netns", "delete", self.name)  # and the cable with it


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=True)
    return done.stdout


@contextlib.contextmanager
def ray_node(*words: str, inside: str = "") -> Iterator[None]:
    """Run a Ray node of one CPU for the time of a block."""
    code = "from ray.scripts.scripts import main; main()"
    command = [sys.executable, "-c", code, "start", "--block", "--num-cpus=1", *words]
    command = [*(["ip", "netns", "exec", inside] if inside else []), *command]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.fixture
def space() -> Iterator[Namespace]:
    for command in ("ip", "unshare"):
        if shutil.which(command) is None:
            pytest.skip(f"the command {command} is not installed")
    if subprocess.run(["unshare", "--net", "true"], check=False).returncode:
        pytest.skip("this user may not make network namespaces")
    made = Namespace()
    yield made
    made.close()


@pytest.fixture
def cluster(space: Namespace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Namespace]:
    """Two nodes, this process being on the first. The folder's name is short for Ray's sockets."""
    ray = pytest.importorskip("ray", reason="ray is not installed: hotshoe-executor-ray[ray]")
    with tempfile.TemporaryDirectory(prefix="hr-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        with socket.socket() as sock:
            sock.bind((space.here, 0))
            port = sock.getsockname()[1]
        head = f"{space.here}:{port}"
        first = (f"--port={port}", f"--node-ip-address={space.here}", f"--temp-dir={folder}")
        second = (f"--address={head}", f"--node-ip-address={space.there}")
        with (
            ray_node("--head", "--include-dashboard=false", *first),
            ray_node(*second, inside=space.name),
        ):
            wait(lambda: _connected(ray, head, space.here), START_S)
            try:
                wait(lambda: ray.cluster_resources().get("CPU") == 2, START_S)
                yield space
            finally:
                ray.shutdown()


def _connected(ray: object, head: str, here: str) -> bool:
    try:
        ray.init(address=head, _node_ip_address=here, log_to_driver=False)
    except Exception:
        ray.shutdown()
        return False
    return True


def wait(condition: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.1)


@pytest.mark.slow  # starts two nodes of a cluster
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", ["it is killed", "its cable is pulled"])
def test_stages_on_two_hosts(open_llm: Callable[..., LLM], cluster: Namespace, loss: str) -> None:
    """The tokens are those of one process; a node that goes is named, and nothing is left."""
    params = SamplingParams(temperature=0, max_tokens=12)
    with open_llm() as llm:
        [expected] = llm.generate(PROMPT, params)
    options = {"pipeline_parallel_size": 2, "distributed_executor_backend": "ray"}
    llm = open_llm(**options)
    [found] = llm.generate(PROMPT, params)
    assert found.outputs[0].token_ids == expected.outputs[0].token_ids
    stream = llm.stream(PROMPT, SamplingParams(max_tokens=240, ignore_eos=True))
    next(stream)
    begin = time.monotonic()
    (cluster.kill if "killed" in loss else cluster.cut)()
    with pytest.raises(EngineDeadError, match=rf"rank . of 2 went with node . at {cluster.there}"):
        list(stream)
    assert time.monotonic() - begin < END_S
    llm.close()
    # An agent removes its folder once its ranks have ended; one that was killed cannot.
    folders = 1 if "killed" in loss else 0
    found_folders = Path(tempfile.gettempdir()).glob
    wait(lambda: len(list(found_folders("hotshoe-ranks-*"))) == folders, LEAVE_S)
    wait(lambda: not any(_is_rank(pid) for pid in cluster.pids()), LEAVE_S)


def _is_rank(pid: int) -> bool:
    try:
        return b"hotshoe" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
