"""Matrices beside a model act on the vectors of one task; all else is the model's own."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from hotshoe.errors import CheckpointError
from hotshoe.models.modules import Dense, Projection
from hotshoe.runner.projected import Projected

MODEL = SimpleNamespace(hidden_size=6, head=lambda hidden, task: hidden * 2)


def projected(path: Path, by_token: bool, **changes: object) -> Projected:
    values = {"folder": path, "in_features": 6, "out_features": 4, "bias": True}
    layer = Dense(**values | {"activation": "ReLU"} | changes)
    return Projected(MODEL, Projection((layer,), by_token), "cpu", random=False)


@pytest.mark.parametrize(("by_token", "task"), [(False, "embed"), (True, "token_embed")])
def test_a_task_is_projected(tmp_path, by_token, task) -> None:
    weight, bias, hidden = torch.randn(4, 6), torch.randn(4), torch.randn(3, 6)
    save_file({"linear.weight": weight, "linear.bias": bias}, tmp_path / "model.safetensors")
    model = projected(tmp_path, by_token)
    wanted = torch.relu(2 * hidden @ weight.T + bias)
    torch.testing.assert_close(model.head(hidden, task), wanted)
    torch.testing.assert_close(model.head(hidden, "classify"), 2 * hidden)
    assert model.hidden_size == 6 and model.nbytes() == weight.nbytes
    assert not hasattr(model, "draft_head")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"linear.weight": torch.zeros(4, 6)}, "has no linear.bias"),
        (
            {"linear.weight": torch.zeros(6, 4), "linear.bias": torch.zeros(4)},
            r"shape \[6, 4\], not \[4, 6\]",
        ),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, tensors, message) -> None:
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        projected(tmp_path, by_token=False)
