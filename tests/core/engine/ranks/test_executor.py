"""Executor "mp": which ranks a configuration gets."""

from types import SimpleNamespace

import pytest

from hotshoe.config import EngineConfig
from hotshoe.engine.ranks import executor
from hotshoe.engine.ranks.agents import AgentGroup
from hotshoe.engine.ranks.parallel import ParallelWorker
from hotshoe.engine.ranks.processes import ProcessGroup


@pytest.mark.parametrize(("nnodes", "kind"), [(1, ProcessGroup), (2, AgentGroup)])
def test_ranks_of_one_host_are_processes_and_of_several_have_agents(
    nnodes: int, kind: type, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 64)
    secret.chmod(0o600)
    groups: list[object] = []
    monkeypatch.setattr(executor, "ranked", lambda setup, group: groups.append(group))
    config = EngineConfig(
        tensor_parallel_size=4, nnodes=nnodes, cluster_secret_file=str(secret) * (nnodes > 1)
    )
    executor.processes(SimpleNamespace(config=config))
    [group] = groups
    assert type(group) is kind


def test_a_worker_of_a_group_has_the_setup_of_the_engine() -> None:
    setup = SimpleNamespace(
        config=EngineConfig(tensor_parallel_size=2),
        model_config=SimpleNamespace(eos_token_ids=(7,)),
        plugins=SimpleNamespace(records=[SimpleNamespace(name="one", version="1")]),
        selector=SimpleNamespace(slots=()),
    )
    assert isinstance(executor.ranked(setup, ProcessGroup(2)), ParallelWorker)
