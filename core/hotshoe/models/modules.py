"""Matrices beside a model that its vectors go through, as data: `modules.json` names them.

Behind the pooling they act on the vector of a text, before it, or without one, on those of tokens.
Sources of the formats: the files of sentence-transformers and PyLate; ColBERT's artifact.metadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hotshoe.errors import CheckpointError
from hotshoe.models.config import ModelConfig, read_json
from hotshoe.models.pooling import MODULES, inside, module_name, read_modules

#: What ColBERT's own files say, and how its class calls the matrix.
ARTIFACT, LINEAR = "artifact.metadata", "linear"
#: Activations of such a matrix, by the last part of their class's name.
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU")
DIM = 128


@dataclass(frozen=True, slots=True)
class Dense:
    """y = act(x W^T + b).

    Attributes:
        folder: Where the weights are, `linear.weight` and perhaps `linear.bias`.
        in_features, out_features: Sizes.
        activation: One of `ACTIVATIONS`.
    """

    folder: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str


@dataclass(frozen=True, slots=True)
class Projection:
    """Matrices, one behind the other.

    Attributes:
        layers: At least one.
        by_token: They act on the states of tokens, not on the vector of a text.
    """

    layers: tuple[Dense, ...]
    by_token: bool

    @property
    def size(self) -> int:
        """Entries of the vectors that come out."""
        return self.layers[-1].out_features


def read_projection(config: ModelConfig) -> Projection | None:
    """Read which matrices lie beside a model; None for none.

    Raises:
        CheckpointError: A file is malformed, sizes do not fit, or an activation is not served here.
    """
    path = config.path
    if config.file is not None:
        return None
    if (path / ARTIFACT).is_file() and not (path / MODULES).is_file():
        values = read_json(path / ARTIFACT)
        size, dim = config.size("hidden_size"), _size(path / ARTIFACT, values, "dim", DIM)
        return Projection((Dense(path, size, dim, False, "Identity"),), by_token=True)
    layers, pools = [], False
    for module in read_modules(path):
        name = module_name(module)
        pools = pools or name == "Pooling"
        if name == "Dense":
            layers.append((_read_dense(path, str(module.get("path", ""))), pools))
    if not layers:
        return None
    for (one, where), (other, behind) in pairwise(layers):
        if one.out_features != other.in_features or where != behind:
            raise CheckpointError(f"{path / MODULES}: its Dense modules do not follow one another")
    by_token = not layers[0][1]
    if by_token and pools:
        raise CheckpointError(f"{path / MODULES} has a Dense module in front of its pooling")
    return Projection(tuple(layer for layer, _ in layers), by_token)


def _read_dense(path: Path, folder: str) -> Dense:
    place = inside(path, folder) / "config.json"
    values = read_json(place)
    activation = str(values.get("activation_function", "Identity")).rpartition(".")[2]
    if activation not in ACTIVATIONS:
        raise CheckpointError(
            f"{place} asks for activation {activation!r}; served are {', '.join(ACTIVATIONS)}"
        )
    if values.get("use_residual"):
        raise CheckpointError(f"{place}: use_residual is not served")
    taken, made = (_size(place, values, name) for name in ("in_features", "out_features"))
    return Dense(place.parent, taken, made, values.get("bias", True) is True, activation)


def _size(place: Path, values: dict[str, Any], name: str, default: int | None = None) -> int:
    value = values.get(name, default)
    if type(value) is not int or not 0 < value <= 2**20:
        raise CheckpointError(f"{place}: {name} must be a positive integer, not {value!r}")
    return value
