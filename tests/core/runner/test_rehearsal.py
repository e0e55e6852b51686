"""What a start runs, and its rehearsal where the platform wants one."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from hotshoe.builtin.null import NullPlatform
from hotshoe.config import EngineConfig, ResolvedConfig
from hotshoe.engine.start.setup import prepare
from hotshoe.runner import worker
from hotshoe.runner.rehearsal import Unrecorded, largest_step, mixed_steps
from hotshoe.runner.runner import Runner
from hotshoe.slots import Rendezvous
from hotshoe.slots.reference.communicator import Communicator

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 64,
    "max_position_embeddings": 32,
    "torch_dtype": "float32",
    "eos_token_id": 1,
}


def config(**options: int) -> ResolvedConfig:
    sizes = {"max_num_batched_tokens": 600, "max_model_len": 256, "max_num_seqs": 256, **options}
    return EngineConfig(**sizes)  # type: ignore[return-value]  # what is asked of it has a value


def test_the_largest_step_fills_the_budget_with_prompts() -> None:
    assert largest_step(config()) == [256, 256, 88]
    assert largest_step(config(max_num_seqs=2)) == [256, 256]
    assert largest_step(config(max_num_batched_tokens=512)) == [256, 256]


def test_mixed_steps_fit_budget_and_rows() -> None:
    assert [len(lengths) for lengths in mixed_steps(config())] == [1, 2, 20, 80, 256]
    assert [len(lengths) for lengths in mixed_steps(config(max_num_seqs=80))] == [1, 2, 20, 80]
    few = config(max_num_batched_tokens=180)
    assert [len(lengths) for lengths in mixed_steps(few)] == [1, 2, 20, 80]
    assert {max(lengths) for lengths in mixed_steps(config(max_model_len=8))} == {8}


def test_what_is_not_recorded_runs_once_and_keeps_no_result() -> None:
    calls: list[object] = []
    results = weakref.WeakSet[torch.Tensor]()

    def step(between: Callable[[Callable[[], object]], None] | None = None) -> torch.Tensor:
        calls.append(between)
        if between is not None:
            between(lambda: calls.append("attention"))
        results.add(found := torch.ones(1))
        return found

    kept = [Unrecorded().record(step), Unrecorded().record_pieces(step)]
    assert len(calls) == 3
    assert calls[-1] == "attention"
    assert not results
    for replay in kept:
        with pytest.raises(AssertionError, match="nothing was recorded"):
            replay()


class Rehearsed(NullPlatform):
    """Notes which steps run while its kernels are compiled, and may record."""

    asynchronous = True

    def __init__(self, lacks: bool) -> None:
        self.steps: list[list[int]] | None = None
        self.inside = False
        self._lacks = lacks

    @contextmanager
    def rehearsal(self) -> Iterator[Callable[[], bool]]:
        self.steps, self.inside = [], True
        yield lambda: self._lacks
        self.inside = False


@pytest.mark.parametrize("lacks", [False, True])
def test_a_platform_that_compiles_sees_all_steps_before_they_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: bool
) -> None:
    """And steps of all sizes if it has something to compile."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    platform, real = Rehearsed(lacks), []
    recorded: list[bool] = []
    monkeypatch.setattr(
        worker.Runner, "record_graphs", lambda runner, every=False: recorded.append(every)
    )

    def warm_up(runner: Runner, lengths: list[int]) -> None:
        (platform.steps if platform.inside else real).append(list(lengths))

    monkeypatch.setattr(worker.Runner, "warm_up", warm_up)
    options = {"load_format": "dummy", "max_num_seqs": 4, "max_num_batched_tokens": 120}
    setup = prepare(EngineConfig(model=str(tmp_path), **options), platform=platform)
    made = setup.torch_worker()
    phases = made.load().phases
    assert "compile kernels" in phases
    assert not real
    assert recorded == [False, True][: 1 + lacks]
    made.allocate_cache((4,))
    assert platform.steps is not None
    assert {tuple(lengths) for lengths in real} <= {tuple(lengths) for lengths in platform.steps}
    assert largest_step(setup.config) in platform.steps
    made.close()


class Ranked(Rehearsed):
    """Serves several ranks, which are threads here."""

    def take_part(self, rank: int, size: int) -> None:
        pass


def test_ranks_rehearse_without_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is exchanged meanwhile, though every step adds up and gathers; then it is."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    options = {"load_format": "dummy", "max_num_seqs": 4, "max_num_batched_tokens": 120}
    config = EngineConfig(model=str(tmp_path), tensor_parallel_size=2, **options)
    platforms = [Ranked(lacks=rank == 0) for rank in range(2)]
    exchanges: list[tuple[int, bool]] = []
    gather, warm_up = Communicator._gather, worker.Runner.warm_up

    def watched(group: Communicator, x: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
        exchanges.append((group.rank, platforms[group.rank].inside))
        return gather(group, x, sizes)

    def noted(runner: Runner, lengths: list[int]) -> None:
        platform = platforms[runner._peers.mesh.tp.rank]
        if platform.inside:
            assert platform.steps is not None
            platform.steps.append(list(lengths))
        warm_up(runner, lengths)

    monkeypatch.setattr(Communicator, "_gather", watched)
    monkeypatch.setattr(worker.Runner, "warm_up", noted)

    def start(rank: int) -> None:
        setup = prepare(config, platform=platforms[rank], part=(rank, 2))
        made = setup.torch_worker(Rendezvous(str(tmp_path), rank, 2, 60.0))
        try:
            made.load()
            made.allocate_cache((4,))
        finally:
            made.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(start, range(2)))
    assert all([32, 32, 32, 24] in (platform.steps or ()) for platform in platforms)
    assert {rank for rank, _ in exchanges} == {0, 1}
    assert not any(inside for _, inside in exchanges)
