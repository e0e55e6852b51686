"""What a source of models is asked and answers, where MODEL names no directory of this machine.

Sources are plugins (hook `hotshoe_model_sources`); core itself fetches nothing. So are resolvers of
adapters (hook `hotshoe_adapter_resolvers`), which a server asks while it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

#: What an adapter in the form of PEFT consists of: its configuration, and its weights.
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


@dataclass(frozen=True, slots=True)
class WantedModel:
    """Attributes:
    name: As the user wrote it, such as "organization/model".
    revision: A branch, tag or commit of it; None for what is newest.
    folder: Where fetched files are kept; None for the source's own place.
    weights: Whether weights are wanted too; without them, what describes model and tokenizer.
    variant: Which of several models of that name, such as "Q4_K_M"; a file that describes itself.
    probe: Nothing is wanted yet but whether the model can be had, within seconds.
    """

    name: str
    revision: str | None = None
    folder: Path | None = None
    weights: bool = False
    variant: str | None = None
    probe: bool = False


@dataclass(frozen=True, slots=True)
class FoundModel:
    """Attributes:
    path: The model directory, or the file that is the model.
    revision: What exactly was fetched: asked for again, it gives the same files, at once where
        they are here already. None for a directory that nobody fetched.
    """

    path: Path
    revision: str | None = None


class ModelSource(Protocol):
    """What hook `hotshoe_model_sources` names."""

    def __call__(self, wanted: WantedModel) -> FoundModel | None:
        """Fetch what is not here yet; None when the name is none of this source's.

        Asked with `probe`, a source may fetch nothing, and return a path that does not exist with a
        revision. It raises where the model certainly cannot be had, and not where it cannot tell.

        Raises:
            CheckpointError: It cannot be had; the message says why and what to do.
        """
        ...


class AdapterResolver(Protocol):
    """What hook `hotshoe_adapter_resolvers` names."""

    def __call__(self, name: str, folder: Path | None) -> Path | None:
        """Return the directory of an adapter in the form of PEFT; None when the name is none here.

        Called in a thread, by several at once, with names that come from strangers: check the name
        before anything is done with it, and the size of files before they are fetched.

        Args:
            name: As a request has it: 1 to 256 characters, and no model's name.
            folder: Where fetched files are kept; None for the resolver's own place.

        Raises:
            CheckpointError: It cannot be had now. The message goes to the server's log alone.
        """
        ...
