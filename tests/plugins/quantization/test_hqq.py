"""Checkpoints of HQQ that are broken; `test_checkpoints` reads sound ones."""

import pytest
import torch
from tests.plugins.quantization.test_checkpoints import hqq_config
from tests.plugins.quantization.writers import hqq
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe_quantization.hqq import read


class Source(dict):
    """Tensors by name, as files have them."""

    def names(self):
        return list(self)

    def tensor(self, name: str) -> Tensor:
        return self[name]

    def taken(self, name: str) -> None:
        self.pop(name)


def written(layer: str = "model.layers.0.mlp.up_proj") -> tuple[Source, Tensor]:
    parts, dense = hqq(4, 32)(torch.randn(6, 64))
    norm = {"model.norm.weight": torch.ones(64)}
    return Source(norm | {f"{layer}.{name}": tensor for name, tensor in parts.items()}), dense


def test_parts_are_rows_and_what_is_taken_goes() -> None:
    source, dense = written()
    found = read(hqq_config(4, 32)).decode(source)
    layer = "model.layers.0.mlp.up_proj"
    parts = [f"{layer}.{name}" for name in ("weight", "weight_scale", "weight_zero_point")]
    assert list(found.names()) == ["model.norm.weight", *parts]
    weight, scale, zero = (found.tensor(name).float() for name in parts)
    made = (weight.unflatten(1, (-1, 32)) - zero[..., None]) * scale[..., None]
    torch.testing.assert_close(made.flatten(1), dense, rtol=1e-5, atol=1e-6)
    assert found.stored(parts[0]) == ("uint8", 6 * 32)
    found.taken(parts[0])
    assert f"{layer}.W_q" not in source


BROKEN = {
    "bits": ({"nbits": lambda t: t + 4}, r"nbits is \[8\], but nbits of quantization_config is 4"),
    "axis": ({"axis": lambda t: t - 1}, r"axis is \[0\], but axis of quantization_config is 1"),
    "type": ({"W_q": lambda t: t.float()}, "W_q is of type torch.float32 and shape"),
    "size": ({"W_q": lambda t: t[:3]}, "not the bytes of 6 x 64 numbers of 4 bits"),
    "scales": ({"scale": lambda t: t[:5]}, "scale has no equal part for each of 6 outputs"),
    "shape": ({"shape": lambda t: t[:1]}, r"shape must be two sizes, not \[6\]"),
    "no numbers": ({"shape": lambda t: t.float()}, r"shape must be two sizes, not \[6.0, 64.0\]"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_parts_that_do_not_belong_together(name: str) -> None:
    spoil, words = BROKEN[name]
    source, _ = written()
    for part, change in spoil.items():
        source[f"model.layers.0.mlp.up_proj.{part}"] = change(
            source[f"model.layers.0.mlp.up_proj.{part}"]
        )
    found = read(hqq_config(4, 32)).decode(source)
    with pytest.raises(CheckpointError, match=words):
        [found.tensor(part) for part in found.names()]


def test_parts_that_lack_or_should_not_be_there() -> None:
    source, _ = written()
    del source["model.layers.0.mlp.up_proj.zero"]
    with pytest.raises(CheckpointError, match=r"lacks model\.layers\.0\.mlp\.up_proj\.zero"):
        read(hqq_config(4, 32)).decode(source)
    with pytest.raises(CheckpointError, match="as integers, but config"):
        read(hqq_config(4, 32)).decode(written("lm_head")[0])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "quant_config must be an object"),
        ({"quant_config": {"a": {}}}, "quant_config.a.weight_quant_params must be an object"),
        (hqq_config(3, 64), "nbits is read as 2 or 4 or 8, not 3"),
        (hqq_config(4, 0), "group_size must be a positive integer"),
        (hqq_config(4, 64, skip_modules="lm_head"), "skip_modules must be a list of names"),
    ],
)
def test_what_is_not_read_is_named(config: dict, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(config)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("axis", 0, "axis is read as 1, not 0"),
        ("view_as_float", True, "view_as_float is read as False"),
    ],
)
def test_other_layouts_are_refused(name: str, value: object, words: str) -> None:
    config = hqq_config(4, 64)
    config["quant_config"]["weight_quant_params"][name] = value
    with pytest.raises(CheckpointError, match=words):
        read(config)
    config = hqq_config(4, 64)
    config["quant_config"]["scale_quant_params"] = {"nbits": 8}
    with pytest.raises(CheckpointError, match="scale_quant_params must be null"):
        read(config)
