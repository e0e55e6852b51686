"""How a checkpoint wants one vector made of a prompt: `modules.json` and what it names, as data.

Source of the format: the files that sentence-transformers writes beside a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hotshoe.errors import CheckpointError
from hotshoe.models.config import read_json
from hotshoe.models.files import MIB, parse_json, read_text
from hotshoe.types.pooling import Pooling, PoolingKind

MODULES = "modules.json"
MAX_BYTES = MIB
#: The two spellings of a pooling configuration: one word, or a flag for each mode.
_MODES: dict[str, PoolingKind] = {"lasttoken": "last", "mean": "mean"}
_FLAGS = {"pooling_mode_lasttoken": "lasttoken", "pooling_mode_mean_tokens": "mean"}


def read_pooling(path: Path) -> Pooling | None:
    """Read how the model in a directory pools; None for one that makes no vectors.

    Raises:
        CheckpointError: A file is malformed, or asks for a module that is not served here.
    """
    if not (path / MODULES).is_file():
        return None
    kind: PoolingKind | None = None
    normalize = False
    for module in _read_modules(path / MODULES):
        name = str(module.get("type", "")).rpartition(".")[2]
        if name == "Pooling":
            kind = _read_kind(path, str(module.get("path", "")))
        elif name == "Normalize":
            normalize = True
        elif name != "Transformer":
            raise CheckpointError(
                f"{path / MODULES} names a module {name!r}; served are Transformer, Pooling and "
                "Normalize, so vectors of this model would be wrong"
            )
    return None if kind is None else Pooling(kind, normalize)


def _read_modules(path: Path) -> list[dict[str, Any]]:
    try:
        modules = parse_json(read_text(path, MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise CheckpointError(f"{path} must hold a JSON list of objects")
    return modules


def _read_kind(path: Path, folder: str) -> PoolingKind:
    place = path / folder / "config.json"
    if not place.resolve().is_relative_to(path.resolve()):
        raise CheckpointError(f"{path / MODULES} names {folder!r}, which lies outside the model")
    values = read_json(place)
    if values.get("include_prompt", True) is not True:
        raise CheckpointError(
            f"{place}: include_prompt is {values['include_prompt']!r}, but instructions are pooled "
            "with the text here"
        )
    asked = [values["pooling_mode"]] if "pooling_mode" in values else []
    asked += [_FLAGS.get(k, k) for k, v in values.items() if k.startswith("pooling_mode_") and v]
    if len(asked) != 1 or asked[0] not in _MODES:
        raise CheckpointError(
            f"{place} asks for pooling {', '.join(map(str, asked)) or 'of no kind'}; served is one "
            f"of {', '.join(_MODES)}"
        )
    return _MODES[asked[0]]
