"""Where tensors come from: files, random values, or pairs of names and tensors.

A source only gives what it has; the weight table says what it wants.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers.weights import ExpectedWeight
from hotshoe.loader.files import checkpoint_files
from hotshoe.loader.safetensors import SafetensorsFile

if TYPE_CHECKING:
    from hotshoe.models.model_file import ModelFile

#: Random values are drawn once and repeated; long enough that layers differ.
DUMMY_PERIOD = 1_000_003
#: New weights: a directory, one safetensors file, or names and tensors.
Weights: TypeAlias = "str | Path | Iterable[tuple[str, Tensor]]"


class Stored(NamedTuple):
    """How a file has a tensor: its type's name, and bytes."""

    type: str
    nbytes: int


@runtime_checkable
class Described(Protocol):
    """A source that says how it has tensors, without reading one; `explain` asks."""

    def stored(self, name: str) -> Stored:
        """Return type and size of a tensor as it lies in the file."""
        ...


class TensorSource(Protocol):
    """A set of named tensors."""

    def names(self) -> Iterable[str]:
        """Return the names in the order in which they are best read."""
        ...

    def tensor(self, name: str) -> Tensor:
        """Return a tensor, perhaps a view of a file's bytes that are read when they are used."""
        ...

    def taken(self, name: str) -> None:
        """Hear that a tensor, and those before it, have been used."""
        ...


class Files:
    """Safetensors files as one source, letting go of pages as layers take what they need.

    Raises:
        CheckpointError: A file cannot be used, or two of them hold the same name.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._home: dict[str, SafetensorsFile] = {}
        for path in paths:
            file = SafetensorsFile(path)
            for name in file.names():
                if name in self._home:
                    raise CheckpointError(
                        f"{path} holds {name} once more; keep the files of one checkpoint alone"
                    )
                self._home[name] = file

    def names(self) -> Iterable[str]:
        """Return the names file by file, each in the order of its data."""
        return list(self._home)

    def tensor(self, name: str) -> Tensor:
        """Return a view of the file."""
        return self._home[name].tensor(name)

    def taken(self, name: str) -> None:
        """Let go of the file's pages up to there."""
        self._home[name].release_through(name)

    def read(self, name: str, begin: int, target: memoryview) -> None:
        """Read bytes of a tensor, from `begin` on, as many as the target holds; by any thread.

        Raises:
            CheckpointError: The file cannot be read.
        """
        self._home[name].read(name, begin, target)

    def stored(self, name: str) -> Stored:
        """Return type and size in the file."""
        tensor = self._home[name].tensor(name)
        return Stored(str(tensor.dtype).removeprefix("torch."), tensor.nbytes)


class Dummy:
    """Small random values: the same name and seed give the same tensor."""

    def __init__(
        self, expected: Mapping[str, ExpectedWeight], dtype: torch.dtype, seed: int, device: str
    ) -> None:
        self._expected = expected
        generator = torch.Generator().manual_seed(seed)
        base = torch.empty(DUMMY_PERIOD).normal_(0.0, 0.02, generator=generator)
        self._base = base.to(device, dtype)

    def names(self) -> Iterable[str]:
        """Return all that is expected."""
        return list(self._expected)

    def tensor(self, name: str) -> Tensor:
        """Return values about 0; about 1 for norms and for single scales, and other integers where
        none else fit; where they can only be indexes 0, or those from 0 on in each row of a table.
        The weight's format may make other values of them (`TensorSpec.drawn`).
        """
        expected = self._expected[name]
        values = self._values(name, expected)
        return values if expected.drawn is None else expected.drawn(values)

    def _values(self, name: str, expected: ExpectedWeight) -> Tensor:
        if len(expected.shape) == 1 and not any(t.is_floating_point for t in expected.dtypes):
            return torch.zeros(expected.shape, dtype=min(expected.dtypes, key=str))
        if torch.int64 in expected.dtypes:  # which no packed numbers have
            return torch.arange(expected.shape[-1]).expand(expected.shape)
        count = int(torch.Size(expected.shape).numel())
        rolled = self._base.roll(zlib.crc32(name.encode()) % DUMMY_PERIOD)
        values = rolled.repeat(-(-count // DUMMY_PERIOD))[:count].view(expected.shape)
        if count == 1 or (len(expected.shape) == 1 and "norm" in name):
            return values + 1
        return values if values.dtype in expected.dtypes else _typed(values, expected.dtypes)

    def taken(self, name: str) -> None:
        """Do nothing: values are made when they are asked for."""


def _typed(values: Tensor, dtypes: frozenset[torch.dtype]) -> Tensor:
    """Bring values about 0 to a type of another kind, spread over a part of its range."""
    dtype = min(dtypes, key=str)
    return values.to(dtype) if dtype.is_floating_point else (values.float() * 1000).to(dtype)


class Stream:
    """Names and tensors, as a trainer has them; all are taken in before any is used.

    Raises:
        CheckpointError: Something else is among them, or a name twice.
    """

    def __init__(self, pairs: Iterable[tuple[str, Tensor]]) -> None:
        self._tensors: dict[str, Tensor] = {}
        try:
            for name, tensor in pairs:
                if not isinstance(name, str) or not isinstance(tensor, Tensor):
                    raise TypeError(f"{type(name).__name__} and {type(tensor).__name__}")
                if name in self._tensors:
                    raise CheckpointError(f"{name} is given twice")
                self._tensors[name] = tensor.detach()
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"weights are a directory, a file, or pairs of a name and a tensor: {error}"
            ) from error

    def names(self) -> Iterable[str]:
        """Return the names in the order in which they came."""
        return list(self._tensors)

    def tensor(self, name: str) -> Tensor:
        """Return the tensor itself."""
        return self._tensors[name]

    def taken(self, name: str) -> None:
        """Let go of the tensor."""


def source_of(weights: Weights | ModelFile, dtype: torch.dtype = torch.float32) -> TensorSource:
    """Return weights as a source.

    Args:
        weights: Where they are.
        dtype: Of what a model's file has packed.

    Raises:
        CheckpointError: They are not there, or no weights.
    """
    if hasattr(weights, "weights"):
        return weights.weights(dtype)
    if not isinstance(weights, (str, Path)):
        return Stream(weights)
    path = Path(weights)
    if not path.is_dir():
        return Files([path])
    return Files(checkpoint_files(path))
