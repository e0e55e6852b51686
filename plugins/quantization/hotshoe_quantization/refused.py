"""Formats that are known and not read: one clear answer for each, with what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

from hotshoe.errors import CheckpointError


def refuse(name: str, instead: str, config: Mapping[str, Any]) -> NoReturn:
    """Refuse a format.

    Raises:
        CheckpointError: Always.
    """
    raise CheckpointError(f"checkpoints quantized by {name} are not read; {instead}")


_ONLINE = "use the unquantized checkpoint, with --quantization fp8 or int8 if wanted"
torchao = partial(refuse, "torchao", "export it as compressed-tensors, or " + _ONLINE)
quark = partial(refuse, "Quark", _ONLINE)
