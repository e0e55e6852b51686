"""Models that are one file, or a few that belong together, and describe themselves.

The engine knows directories with config.json, tokenizer.json and safetensors files. A plugin (hook
`hotshoe_model_files`) reads another kind of file and gives the same three things; nothing behind it
asks where they come from. Imports no torch, as front ends read tokenizers too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from hotshoe.layers import WeightFormat
    from hotshoe.loader.sources import TensorSource


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """Attributes:
    model: What tokenizer.json would hold.
    config: What tokenizer_config.json would hold: named tokens, chat templates.
    """

    model: bytes
    config: Mapping[str, Any]


class ModelFile(Protocol):
    """An opened model, whose header has been read and checked."""

    def config(self) -> Mapping[str, Any]:
        """Return what config.json would hold, `architectures` and `dtype` among it.

        Raises:
            CheckpointError: Something is missing, malformed, or of a kind that is not served.
        """
        ...

    def tokenizer(self) -> TokenizerParts:
        """Return the tokenizer.

        Raises:
            CheckpointError: As for `config`.
        """
        ...

    def paths(self) -> Sequence[Path]:
        """Return the files that hold weights: while they are the same, so are the weights."""
        ...

    def weights(self, dtype: torch.dtype) -> TensorSource:
        """Return the tensors by the names of config.json's architecture.

        Args:
            dtype: Of tensors that are packed in the file; others keep their own.
        """
        ...

    def format(self) -> WeightFormat:
        """Return how matrices are packed. Called before the model is built, whose layers ask it;
        `weights` then has packed what they have asked for."""
        ...


class ModelFileFormat(Protocol):
    """What hook `hotshoe_model_files` names."""

    def choose(self, names: Sequence[str], variant: str | None) -> str | None:
        """Choose a model among the files of a directory.

        Args:
            names: All files there; where there is a variant, those one folder below, too.
            variant: What the user has written after a colon, such as "Q4_K_M".

        Returns:
            The file to open; None where no file is of this format.

        Raises:
            CheckpointError: There are several models, or none of this variant.
        """
        ...

    def open(self, path: Path) -> ModelFile:
        """Read a file's header, and those of files that belong to it.

        Raises:
            CheckpointError: One is missing, truncated, malformed or of an unknown version.
        """
        ...
