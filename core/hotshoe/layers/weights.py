"""The table of weights that a model expects, filled from a checkpoint tensor by tensor.

A layer says which checkpoint names it wants, of which shape, and what to do with each; the loader
feeds whatever order the files have. Nothing here reads files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

from hotshoe.errors import CheckpointError

Sink = Callable[[Tensor], None]


@dataclass(frozen=True, slots=True)
class ExpectedWeight:
    """One wanted tensor. Several layers may want the same one (tied embeddings)."""

    shape: tuple[int, ...]
    sinks: tuple[Sink, ...]


class WeightTable:
    """Expected weights by checkpoint name."""

    def __init__(self) -> None:
        self.expected: dict[str, ExpectedWeight] = {}
        self._ignored: list[re.Pattern[str]] = []
        self._renames: list[tuple[re.Pattern[str], str]] = []
        self._missing: dict[str, None] = {}

    def expect(self, name: str, shape: tuple[int, ...], sink: Sink) -> None:
        """Ask for a tensor; `sink` may keep it, and must not write to it."""
        known = self.expected.get(name)
        assert known is None or known.shape == shape, f"{name} is wanted in two shapes"
        sinks = (*known.sinks, sink) if known else (sink,)
        self.expected[name] = ExpectedWeight(shape, sinks)
        self._missing[name] = None

    def ignore(self, patterns: Iterable[str]) -> None:
        """Name (by regular expression) checkpoint tensors that this model does not use."""
        self._ignored.extend(re.compile(pattern) for pattern in patterns)

    def rename(self, pattern: str, replacement: str) -> None:
        """Let checkpoint names that match a regular expression stand for others, as `re.sub`."""
        self._renames.append((re.compile(pattern), replacement))

    def known_as(self, name: str) -> str:
        """Return the name that layers know a checkpoint's tensor by."""
        for pattern, replacement in self._renames:
            name = pattern.sub(replacement, name)
        return name

    def wants(self, name: str) -> bool:
        """Tell whether to read a tensor.

        Raises:
            CheckpointError: The name is neither expected nor declared unused.
        """
        if name in self.expected:
            return True
        if any(pattern.search(name) for pattern in self._ignored):
            return False
        raise CheckpointError(
            f"the checkpoint holds {name}, which this architecture does not have; "
            "check `architectures` and the layer counts in config.json"
        )

    def feed(self, name: str, tensor: Tensor) -> None:
        """Hand a tensor to the layers that want it.

        Raises:
            CheckpointError: The shape differs from the configuration's, or the values are integers.
        """
        expected = self.expected[name]
        if tuple(tensor.shape) != expected.shape:
            raise CheckpointError(
                f"{name} has shape {list(tensor.shape)}, but config.json means "
                f"{list(expected.shape)}; checkpoint and configuration do not belong together"
            )
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise CheckpointError(
                f"{name} is of type {kind}: the checkpoint is quantised in a form not read here; "
                "use the unquantised one, with --quantization if wanted"
            )
        self._missing.pop(name, None)
        for sink in expected.sinks:
            sink(tensor)

    def check_complete(self) -> None:
        """Refuse a checkpoint that lacked tensors.

        Raises:
            CheckpointError: Names the first missing tensors.
        """
        if self._missing:
            names = sorted(self._missing)
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise CheckpointError(f"the checkpoint lacks {', '.join(names[:3])}{more}")
