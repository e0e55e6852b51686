"""Settings of every test process.

One thread for torch: tests run side by side, and threads that wait for each other on shared cores
make small operations fifty times slower. No deadline for hypothesis, for the same reason.
Triton's kernels are interpreted where no accelerator runs them, which must be said before Triton
is imported, by whomever. Interrupts are heeded, also where a shell that started the tests in the
background lets them be ignored: processes that tests start would inherit that. Nothing is asked of
the Hugging Face Hub, whatever names a test makes up.
The last line says how many tests of the page were left out for want of a browser.
What imports and fixtures made stays to the end, so the garbage collector need not look at it: every
engine that starts or ends collects, which took longer than the test itself.
"""

import itertools
import os
import signal
from collections.abc import Generator, Iterable

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import torch

from hotshoe.host import freeze, uncollected

if not torch.accelerator.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# How fast inputs are made, and how many in a row do not fit, is luck of the machine and the run.
LUCK = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much]
hypothesis.settings.register_profile("hotshoe", deadline=None, suppress_health_check=LUCK)
hypothesis.settings.load_profile("hotshoe")


#: After how many tests whatever is alive is taken for staying; always behind a module.
TESTS_TO_FREEZE = 10
_num_tests = itertools.count(1)


@pytest.fixture(autouse=True, scope="session")
def marks(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what is remembered of checkpoints out of the user's home."""
    from hotshoe.loader import checked

    checked.FOLDER = tmp_path_factory.mktemp("marks")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    with uncollected():  # or a third of the time goes into looks through what stays
        return (yield)


def pytest_collection_finish() -> None:
    freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    result = yield
    if nextitem is None or nextitem.path != item.path or next(_num_tests) % TESTS_TO_FREEZE == 0:
        freeze()
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    yield
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None and (line := left_out(reporter.stats.get("skipped", []))):
        reporter.write_line(line, yellow=True)


def left_out(skipped: Iterable[pytest.TestReport]) -> str | None:
    """Return the line that says how to run the tests that a browser is missing for, if any."""
    num = sum("Chromium" in str(report.longrepr) for report in skipped)
    remedy = "install Chromium (apt-get install chromium) and run this again"
    return f"{num} browser tests were left out; {remedy}" if num else None
