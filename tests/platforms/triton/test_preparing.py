"""What is done before a device is taken."""

import sys
import threading
from types import ModuleType

from triton.runtime.jit import JITFunction

from hotshoe_triton import preparing


def own(x):
    pass


def test_kernels_of_ours_that_are_imported_have_keys(monkeypatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(preparing, "triton_key", lambda: asked.append("triton"))
    kernels = {}
    for name in ("hotshoe_of_a_test", "another_of_a_test"):
        module = ModuleType(name)
        module.kernel = kernels[name] = JITFunction(own)
        monkeypatch.setitem(sys.modules, name, module)
    preparing.prepare()
    assert asked == ["triton"]
    assert [kernel.hash is not None for kernel in kernels.values()] == [True, False]


def test_the_digest_is_made_beside_a_start(monkeypatch) -> None:
    made = threading.Event()
    monkeypatch.setattr(preparing, "triton_key", made.set)
    preparing.begin()
    assert made.wait(60)
