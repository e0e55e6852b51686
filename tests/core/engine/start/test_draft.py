"""What is refused of speculation before anything is loaded."""

from pathlib import Path

import pytest

from hotshoe.config import EngineConfig
from hotshoe.engine.start.draft import check_speculation
from hotshoe.errors import UserError
from hotshoe_conformance.host import host_plugins


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "nothing"}, "unknown speculative_config.method 'nothing'"),
        ({"method": "mtp", "x": 1}, "method mtp has no option x"),
        ({"method": "draft_model"}, "speculative_config.model is missing"),
        ({"method": "draft_model", "model": "/nowhere"}, "speculative_config.model /nowhere: "),
        ({"method": "eagle3", "model": "/nowhere"}, "there is no directory or file /nowhere"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_speculation(EngineConfig("x", speculative_config=options), host_plugins())


def test_all_else_is_left_to_the_start(tmp_path: Path) -> None:
    for options in (None, {"method": "mtp"}, {"method": "eagle3", "model": str(tmp_path)}):
        check_speculation(EngineConfig("x", speculative_config=options), host_plugins())
