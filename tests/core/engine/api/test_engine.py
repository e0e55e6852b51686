"""The engine as a whole: ids, aborts, end-of-sequence ids, start-up phases."""

from pathlib import Path

import pytest

from hotshoe.config import EngineConfig
from hotshoe.engine.api.engine import Engine
from hotshoe.errors import CheckpointError, RequestError
from hotshoe.types import FinishReason, SamplingParams, TokensPrompt


@pytest.fixture
def engine(model_dir: Path, plugins) -> Engine:
    return Engine(EngineConfig(model=str(model_dir), platform="null", max_num_seqs=4), plugins)


def finish(engine: Engine) -> dict[str, list[list[int]]]:
    found: dict[str, list[list[int]]] = {}
    while engine.has_work():
        for update in engine.step():
            if update.finished:
                outputs = update.output().outputs
                found[update.request_id] = [o.token_ids for o in outputs]
    return found


def test_requests_finish_under_their_own_ids(engine: Engine) -> None:
    engine.add("a", TokensPrompt([1]), SamplingParams(max_tokens=2, n=2))
    engine.add("b", TokensPrompt([9]), SamplingParams(max_tokens=1))
    assert finish(engine) == {"a": [[2, 3], [2, 3]], "b": [[10]]}


def test_abort_drops_all_sequences_and_frees_the_id(engine: Engine) -> None:
    engine.add("a", TokensPrompt([1]), SamplingParams(max_tokens=50, n=3))
    engine.step()
    engine.abort("a")
    engine.abort("never seen")
    assert finish(engine) == {}
    engine.add("a", TokensPrompt([4]), SamplingParams(max_tokens=1))
    assert finish(engine) == {"a": [[5]]}


def test_a_refused_sequence_takes_its_siblings_along(engine: Engine) -> None:
    with pytest.raises(RequestError):
        engine.add("a", TokensPrompt([1] * 64), SamplingParams(n=2))
    assert not engine.has_work()


def test_end_of_sequence_ids_come_from_model_and_tokenizer(engine: Engine) -> None:
    assert engine.setup.model_config.eos_token_ids == (255,)
    engine.add("a", TokensPrompt([253]), SamplingParams(max_tokens=9))
    updates = []
    while engine.has_work():
        updates += engine.step()
    assert updates[-1].sequences[0].finish_reason is FinishReason.STOP


def test_phases_of_the_start_are_timed(engine: Engine) -> None:
    assert list(engine.startup)[:2] == ["resolve configuration", "load tokenizer"]
    assert all(seconds >= 0 for seconds in engine.startup.values())


def test_a_missing_tokenizer_is_named(model_dir: Path, plugins, tmp_path: Path) -> None:
    config = EngineConfig(model=str(model_dir), platform="null", tokenizer=str(tmp_path))
    with pytest.raises(CheckpointError, match="token"):
        Engine(config, plugins)
