"""The thread pool: settings are checked, and it works after a change."""

import hotshoe_native
import pytest


def test_settings_are_reported_and_checked() -> None:
    native = hotshoe_native.load("generic")
    native.set_threads(2, [0, 0])
    assert (native.info()["threads"], native.info()["cores"]) == (2, [0, 0])
    native.set_threads(1)
    assert (native.info()["threads"], native.info()["cores"]) == (1, [])
    with pytest.raises(ValueError, match="at least 1, not 0"):
        native.set_threads(0)
    with pytest.raises(ValueError, match="1 cores for 2 threads"):
        native.set_threads(2, [0])
