"""The network in training form computes what transformers computes on its export."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from demo_data.prepare import Prepared
from demo_train.export import export
from demo_train.network import Network, Shape, document_mask

from hotshoe_demo import MODEL


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    """Stand in for prepared data with the bundled tokenizer and table of sources."""
    (tmp_path / "tokenizer").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "tokenizer" / name).write_bytes((MODEL / name).read_bytes())
    (tmp_path / "SOURCES.md").write_bytes((MODEL / "SOURCES.md").read_bytes())
    return Prepared(tmp_path)


@pytest.fixture(scope="module")
def network() -> Network:
    made = Network(Shape())
    for parameter in made.parameters():
        mean, deviation = (0.0, 0.05) if parameter.dim() == 2 else (1.0, 0.1)
        torch.nn.init.normal_(parameter, mean, deviation)
        parameter.data = parameter.data.bfloat16().float()
    return made


def test_loss_is_that_of_the_exported_checkpoint(
    network: Network, prepared: Prepared, tmp_path: Path
) -> None:
    export(network, prepared, tmp_path / "model")
    other = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype=torch.float32
    )
    ids = torch.randint(3, 8000, (2, 60))
    documents = torch.zeros(2, 59, dtype=torch.long)
    documents[0, 25:] = 1
    with torch.inference_mode():
        mask = document_mask(documents, compiled=False)
        loss = network(ids[:, :-1], ids[:, 1:], torch.ones(2, 59), mask)
        total = 0.0
        for row, start, stop in ((0, 0, 25), (0, 25, 59), (1, 0, 59)):
            logits = other(ids[row : row + 1, start:stop]).logits[0]
            targets = ids[row, start + 1 : stop + 1]
            total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
    assert loss.item() == pytest.approx(total / 118, rel=1e-3)


def test_exported_configuration_is_the_bundled_one(
    network: Network, prepared: Prepared, tmp_path: Path
) -> None:
    export(network, prepared, tmp_path / "model")
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "model" / name).read_text()) == json.loads(
            (MODEL / name).read_text()
        )


def test_weights_select_what_is_learned(network: Network) -> None:
    ids = torch.randint(3, 8000, (1, 21))
    mask = document_mask(torch.zeros(1, 20, dtype=torch.long), compiled=False)
    weights = torch.zeros(1, 20)
    weights[0, :10] = 2.0
    changed = ids.clone()
    changed[0, 11:] = 5
    with torch.inference_mode():
        first = network(ids[:, :-1], ids[:, 1:], weights, mask)
        second = network(changed[:, :-1], changed[:, 1:], weights, mask)
        everything = network(ids[:, :-1], ids[:, 1:], torch.ones(1, 20), mask)
    assert first == second
    assert first != everything
