"""Adapters over HTTP: named as models, loaded and unloaded by an admin."""

import json
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import save_file

PREFIX = "base_model.model.model.layers.0.mlp.down_proj"


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of the bundled model that changes much."""
    path = tmp_path_factory.mktemp("adapter")
    factors = {"A": torch.randn(4, 1024), "B": torch.randn(384, 4)}
    tensors = {f"{PREFIX}.lora_{name}.weight": factor for name, factor in factors.items()}
    save_file(tensors, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 64}))
    return path


def test_adapters_are_models(run_server, adapter: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("the-key-of-an-admin\n")
    server = run_server("demo", "--enable-lora", "--admin-key-file", str(keys))
    headers = {"Authorization": "Bearer the-key-of-an-admin"}

    def post(path: str, **body: object) -> httpx.Response:
        return httpx.post(server.url + path, json=body, headers=headers, timeout=60, verify=False)

    def complete(model: str) -> httpx.Response:
        body = {"prompt": "The list of files", "max_tokens": 16, "temperature": 0}
        return post("/v1/completions", model=model, **body)

    base = complete("demo").json()["choices"][0]["text"]
    missing = complete("mine")
    assert missing.status_code == 404
    error = missing.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert error["message"] == "there is no model 'mine' here, only demo"

    own = {"lora_name": "mine", "lora_path": str(adapter)}
    assert post("/v1/load_lora_adapter", **own).json() == {"done": True}
    for wrong in ({"lora_path": "/nothing"}, {"lora_name": "demo"}):
        assert post("/v1/load_lora_adapter", **{**own, **wrong}).status_code == 400
    cards = server.get("/v1/models").json()["data"]
    assert [(c["id"], c["parent"]) for c in cards] == [("demo", None), ("mine", "demo")]
    described = server.get("/v1/models/mine")
    assert described.json()["root"] == "demo"
    assert str(adapter) not in described.text  # clients hear nothing of the server's files
    answer = complete("mine").json()
    assert answer["model"] == "mine"
    assert answer["choices"][0]["text"] != base
    assert complete("demo").json()["choices"][0]["text"] == base
    assert post("/v1/unload_lora_adapter", lora_name="mine").json() == {"done": True}
    assert post("/v1/unload_lora_adapter", lora_name="mine").status_code == 400
    assert complete("mine").status_code == 404


def test_a_model_without_adapters_is_the_fault(run_server, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("the-key-of-an-admin\n")
    names = ("--served-model-name", "a", "--served-model-name", "b", "--served-model-name", "a")
    server = run_server("demo", *names, "--admin-key-file", str(keys))
    headers = {"Authorization": "Bearer the-key-of-an-admin"}
    assert [card["id"] for card in server.get("/v1/models").json()["data"]] == ["a", "b"]
    for verb, body in (("load", {"lora_path": "/b"}), ("unload", {})):
        path = f"{server.url}/v1/{verb}_lora_adapter"
        refused = httpx.post(path, json={"lora_name": "mine", **body}, headers=headers)
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert (error["code"], error["param"]) == ("invalid_value", "model")
        assert error["message"] == "model a takes no adapters; start it with --enable-lora"


def test_nobody_else_loads_adapters(http) -> None:
    refused = http.post("/v1/load_lora_adapter", lora_name="a", lora_path="/b")
    assert refused.status_code in (401, 403, 404)
