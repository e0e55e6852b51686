"""The platform class: the engine's own for this hardware, with attention by candidates."""

import importlib

import pytest
import torch
from tests.bridge.vllm.conftest import AttentionBackendEnum, CpuPlatform, Selector

OURS = "hotshoe_bridge.vllm.attention.Backend"
SERVED = Selector(32, torch.float32, "auto", False)


def made() -> type:
    return importlib.import_module("hotshoe_bridge.vllm.platform").HotshoePlatform


def test_attention_is_ours_where_no_other_is_asked_for(engine) -> None:
    platform = made()
    assert issubclass(platform, CpuPlatform)
    for asked in (None, AttentionBackendEnum.CUSTOM):
        assert platform.get_attn_backend_cls(asked, SERVED) == OURS
    assert platform.get_attn_backend_cls(AttentionBackendEnum.OTHER, SERVED) == "its own"
    assert engine.said == []


def test_what_ours_does_not_serve_is_said(engine) -> None:
    latent = SERVED._replace(use_mla=True)
    assert made().get_attn_backend_cls(None, latent) == "its own"
    assert engine.said == [
        "hotshoe-bridge serves no such attention: MLA not supported; vLLM's own does"
    ]
    with pytest.raises(ValueError, match=r"attention_backend CUSTOM: .* MLA not supported; choose"):
        made().get_attn_backend_cls(AttentionBackendEnum.CUSTOM, latent)


@pytest.mark.parametrize("found", [(), ("CpuPlatform", "another")])
def test_hardware_that_the_engine_does_not_know_is_refused(engine, found) -> None:
    engine.platforms.clear()
    engine.platforms.update({name: lambda name=name: name for name in found})
    with pytest.raises(RuntimeError, match=f"it finds {', '.join(found) or 'none'}; candidates"):
        made()
