"""Ways to run a model that have to write the same; `test_kit` shows that others are found."""

import pytest

from hotshoe.builtin.null import NullPlatform
from hotshoe.config import EngineConfig
from hotshoe_conformance.checkpoint import MODELS
from hotshoe_conformance.host import PLATFORM, Host, host_plugins
from hotshoe_conformance.kit import Options
from hotshoe_conformance.tokens import RUNS, has_own_worker, token_defects


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_oracle_agrees_with_itself(quick: bool) -> None:
    assert token_defects(PLATFORM, host_plugins(), 3, Options(quick=quick)) == []


def test_runs_differ_in_what_an_engine_can_do() -> None:
    names = [run.name for run in RUNS]
    assert len(set(names)) == len(names)
    assert {"float32", "bfloat16"} == {run.dtype for run in RUNS}
    assert len(MODELS) >= 3


def test_platforms_with_a_worker_of_their_own() -> None:
    config = EngineConfig()
    assert has_own_worker(NullPlatform(), config)
    assert not has_own_worker(Host(), config)
