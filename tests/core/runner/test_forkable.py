"""Whether a process can be forked."""

import threading
from types import SimpleNamespace

import pytest
import torch

from hotshoe.runner import forkable


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_threads_and_devices_in_use_hinder(monkeypatch) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert forkable.hindrance("cpu").startswith("threads run in it: ")
    finally:
        end.set()
        thread.join()
    used = SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setattr(torch, "get_device_module", lambda device: used)
    assert forkable.hindrance("meta") == "device meta is in use"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_system_that_tells_no_ends_hinders(monkeypatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(forkable.os, "pidfd_open", refuse)
    assert "pidfd_open: Function not implemented" in forkable.hindrance(None)
