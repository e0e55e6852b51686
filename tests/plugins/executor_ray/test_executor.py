"""Stages on a Ray cluster of two nodes: the tokens of one process, until a node is killed."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError, EngineDeadError
from hotshoe_ray.executor import create

END_S = 5.0


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

    prompt, params = TokensPrompt([1, 2, 3]), SamplingParams(temperature=0, max_tokens=12)
    with open_llm() as llm:
        [expected] = llm.generate(prompt, params)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    other = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address)
    options = {"pipeline_parallel_size": 2, "distributed_executor_backend": "ray"}
    try:
        with open_llm(**options) as llm:
            [found] = llm.generate(prompt, params)
            assert found.outputs[0].token_ids == expected.outputs[0].token_ids
        assert list(folder.glob("hotshoe-ranks-*")) == []
        llm = open_llm(**options)
        stream = llm.stream(prompt, SamplingParams(max_tokens=240, ignore_eos=True))
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
