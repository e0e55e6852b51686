"""What that engine's entry points get: nothing without a platform, nothing of other versions."""

import pytest

from hotshoe_bridge import versions, vllm


def test_nothing_is_registered_unless_a_platform_is_named(engine, monkeypatch) -> None:
    monkeypatch.delenv(vllm.VARIABLE)
    vllm.register()
    assert vllm.platform_class() is None
    assert engine.registered == {}


def test_everything_is_registered_once(engine) -> None:
    for _ in range(2):  # as an engine that loads its plugins twice in a process
        vllm.register()
    assert {"RMSNorm", "GemmaRMSNorm", "SiluAndMul", "hotshoe"} <= set(engine.registered)
    assert engine.registered["CUSTOM"] == "hotshoe_bridge.vllm.attention.Backend"
    assert vllm.platform_class() == "hotshoe_bridge.vllm.platform.HotshoePlatform"


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("found", ["0.31.9", "0.33.0", "1.0", None])
def test_other_versions_are_refused(monkeypatch, found) -> None:
    monkeypatch.setattr(versions, "_version", lambda package: found)
    with pytest.raises(RuntimeError, match=r"for vLLM from 0\.32 up to, not including, 0\.33"):
        vllm.register()
