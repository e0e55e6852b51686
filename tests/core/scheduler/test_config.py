"""Settings are checked once, with the value and the reason in the message."""

import dataclasses

import pytest

from hotshoe.errors import ConfigError
from hotshoe.scheduler import SchedulerConfig

GOOD = SchedulerConfig(
    max_num_seqs=4, max_num_batched_tokens=8, max_model_len=16, num_blocks=4, block_size=4
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, not 0"),
        ({"num_blocks": -1}, "num_blocks must be at least 1"),
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"max_in_flight_steps": 0}, "max_in_flight_steps must be at least 1"),
        ({"max_model_len": 1}, "max_model_len must be at least 2"),
        ({"policy": "lifo"}, "policy must be one of fcfs, priority, not 'lifo'"),
        (
            {"max_num_batched_tokens": 3},
            r"max_num_batched_tokens \(3\) is below max_num_seqs \(4\)",
        ),
    ],
)
def test_bad_values_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(GOOD, **change)


def test_settings_cannot_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        GOOD.block_size = 8  # type: ignore[misc]
