"""Stages on a Ray cluster of two nodes: the tokens of one process, until a node is killed."""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError, EngineDeadError, EngineError
from hotshoe_cpu.platform import CpuPlatform
from hotshoe_ray import executor
from hotshoe_ray.executor import create

END_S = 5.0
PROMPT = TokensPrompt([1, 2, 3])


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for everything, whose name is short enough for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="hr-", ignore_cleanup_errors=True) as name:
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


@pytest.mark.slow  # starts a cluster of several processes
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_of_two_nodes(open_llm: Callable[..., LLM], folder: Path) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed: hotshoe-executor-ray[ray]")
    from ray.cluster_utils import Cluster

    params = SamplingParams(temperature=0, max_tokens=12)
    with open_llm() as llm:
        [expected] = llm.generate(PROMPT, params)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    other = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address)
    options = {"pipeline_parallel_size": 2, "distributed_executor_backend": "ray"}
    try:
        with open_llm(**options) as llm:
            [found] = llm.generate(PROMPT, params)
            assert found.outputs[0].token_ids == expected.outputs[0].token_ids
        assert list(folder.glob("hotshoe-ranks-*")) == []
        llm = open_llm(**options)
        stream = llm.stream(PROMPT, SamplingParams(max_tokens=240, ignore_eos=True))
        next(stream)
        begin = time.monotonic()
        cluster.remove_node(other, allow_graceful=False)
        with pytest.raises(EngineDeadError, match=r"rank . of 2 went with node"):
            list(stream)
        assert time.monotonic() - begin < END_S
        llm.close()
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_without_the_library_its_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)

    class Setup:
        config = EngineConfig()

    with pytest.raises(ConfigError, match=r"needs the package ray .*hotshoe-executor-ray\[ray\]"):
        create(Setup())


class Placed:
    """A library that finds no room, and keeps the bundles that were asked for."""

    bundles: tuple[dict[str, float], ...] = ()

    def placement_group(self, bundles: list[dict[str, float]], strategy: str) -> "Placed":
        self.bundles = tuple(bundles)
        return self

    def wait(self, limit_s: float) -> bool:
        return False

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 7.0}

    def remove_placement_group(self, group: "Placed") -> None:
        assert group is self


def test_a_rank_asks_for_what_the_platform_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = Placed()
    for name in ("placement_group", "scheduling_strategies"):
        monkeypatch.setitem(sys.modules, f"ray.util.{name}", placed)
    message = r"no room for 2 ranks of 1 CPU and 3 LANE each .* free are 7 CPU, 0 LANE; add nodes"
    with pytest.raises(EngineError, match=message):
        executor.Cluster(placed, 2, {"LANE": 3.0}).launch("h", b"", 1.0, 1)
    assert placed.bundles == ({"CPU": 1.0, "LANE": 3.0},) * 2


@pytest.mark.slow  # starts a cluster of two nodes
@pytest.mark.filterwarnings("ignore")
def test_ranks_get_a_device_each(
    open_llm: Callable[..., LLM], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both on one node, whose devices are declared and do not exist; each sees its own."""
    ray = pytest.importorskip("ray", reason="ray is not installed: hotshoe-executor-ray[ray]")
    params = SamplingParams(temperature=0, max_tokens=6)
    with open_llm() as llm:
        [expected] = llm.generate(PROMPT, params)
    monkeypatch.setattr(CpuPlatform, "cluster_resources", {"GPU": 1.0, "LANE": 2.0})
    monkeypatch.setattr(executor, "PLACE_S", 3.0)
    ray.init(num_cpus=4, num_gpus=2, resources={"LANE": 5.0}, include_dashboard=False)
    options = {"pipeline_parallel_size": 2, "distributed_executor_backend": "ray"}
    try:
        with open_llm(**options) as llm:
            [found] = llm.generate(PROMPT, params)
            assert found.outputs[0].token_ids == expected.outputs[0].token_ids
            assert ray.available_resources().get("GPU", 0) == 0
            assert sorted(devices_of_ranks(folder)) == ["0", "1"]
            with pytest.raises(EngineError, match=r"1 GPU and 2 LANE each .*0 GPU, 1 LANE"):
                open_llm(**options)
    finally:
        ray.shutdown()


def devices_of_ranks(folder: Path) -> list[str]:
    """Return what Ray shows to each rank whose temporary files are in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            values = (process / "environ").read_bytes().split(b"\0")
            pairs = dict(value.decode().partition("=")[::2] for value in values if value)
            command = (process / "cmdline").read_bytes()
            if b"hotshoe.engine" in command and pairs.get("TMPDIR") == str(folder):
                found.append(pairs.get("CUDA_VISIBLE_DEVICES", ""))
    return found
