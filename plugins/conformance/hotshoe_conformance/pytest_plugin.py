"""The kit as a pytest plugin: a platform's test module is a marker and a call.

    @pytest.mark.conformance("sim")
    def test_conformance(conformance_check):
        conformance_check()

becomes one test for the platform's declarations, one for each slot, and one for whole models.
`--conformance-full` runs everything that `hotshoe conformance` runs but measurements, and
`--conformance-seed` repeats a run. Imports no torch before such a test runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hotshoe_conformance.kit import Kit

FIXTURE = "conformance_check"
DECLARATIONS, TOKENS = "declarations", "tokens"
_KITS = pytest.StashKey["dict[str, Kit]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("hotshoe conformance")
    group.addoption("--conformance-full", action="store_true", help="large cases too")
    group.addoption("--conformance-seed", type=int, help="repeat a run; default: a fresh seed")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", "conformance(platform): what the conformance kit tests")
    config.stash[_KITS] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test for each thing that the kit looks at."""
    if FIXTURE in metafunc.fixturenames:
        from hotshoe.plugins import PluginManager
        from hotshoe.slots import all_slots

        slots = all_slots(PluginManager())
        metafunc.parametrize(FIXTURE, [DECLARATIONS, *slots, TOKENS], indirect=True)


@pytest.fixture
def conformance_check(request: pytest.FixtureRequest) -> Callable[[], None]:
    """Return a function that checks one thing and fails with what is wrong, and how to repeat."""
    marker = request.node.get_closest_marker("conformance")
    if marker is None or len(marker.args) != 1:
        raise pytest.UsageError('mark the test with @pytest.mark.conformance("PLATFORM")')
    [platform] = marker.args
    what: str = request.param

    def check() -> None:
        from hotshoe_conformance.report import UNTESTED

        kit = _kit(request.config, platform)
        if what == DECLARATIONS:
            defects = kit.undeclared
        elif what == TOKENS:
            defects = kit.run_tokens()
        else:
            slot = kit.run_slot(what)
            if slot.verdict == UNTESTED:
                reasons = dict.fromkeys(reason for c in slot.candidates for reason in c.left_out)
                pytest.skip("; ".join(reasons))
            defects = [defect for candidate in slot.candidates for defect in candidate.defects]
        text = "\n".join(f"{d.what}\n  {d.spec}\n  {d.shape}\n  {d.repeat}" for d in defects)
        if defects:  # without a trace: no line of this function is at fault
            pytest.fail(f"{platform}, {what}, seed {kit.seed}:\n{text}", pytrace=False)

    return check


def _kit(config: pytest.Config, platform: str) -> Kit:
    """Return the platform's kit, made once in a session."""
    from hotshoe.errors import UserError
    from hotshoe_conformance.kit import Kit, Options

    kits = config.stash[_KITS]
    if platform not in kits:
        full = config.getoption("--conformance-full")
        seed = config.getoption("--conformance-seed")
        try:
            kits[platform] = Kit(platform, Options(quick=not full, seed=seed))
        except UserError as error:  # a platform that is not installed here, or broken
            raise pytest.fail.Exception(str(error), pytrace=False) from None
    return kits[platform]
