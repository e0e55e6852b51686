"""A GGUF model, of one file or of several: the answer to hook `hotshoe_model_files`.

Which file of a directory is meant is decided by names alone, in the form that writers agree on:
NAME-VARIANT.gguf, or NAME-VARIANT-00001-of-00003.gguf for a part; perhaps in a folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.errors import CheckpointError
from hotshoe.models.model_file import TokenizerParts
from hotshoe_models.gguf.families import config_of, family_of
from hotshoe_models.gguf.header import Header
from hotshoe_models.gguf.metadata import Metadata

if TYPE_CHECKING:
    import torch

    from hotshoe.layers import WeightFormat
    from hotshoe.loader.sources import TensorSource
    from hotshoe_models.gguf.storage import Packed

SUFFIX = ".gguf"
MAX_PARTS = 1000
_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class GGUFModel:
    """See `hotshoe.models.model_file.ModelFile`."""

    def __init__(self, headers: list[Header]) -> None:
        self._headers = headers
        self._meta = Metadata(headers)
        self._packed: Packed | None = None

    def config(self) -> Mapping[str, Any]:
        """See `ModelFile.config`."""
        return config_of(self._meta)

    def tokenizer(self) -> TokenizerParts:
        """See `ModelFile.tokenizer`."""
        from hotshoe_models.gguf.tokenizer import tokenizer_of

        return tokenizer_of(self._meta)

    def paths(self) -> list[Path]:
        """See `ModelFile.paths`."""
        return [header.path for header in self._headers]

    def weights(self, dtype: torch.dtype) -> TensorSource:
        """See `ModelFile.weights`."""
        from hotshoe_models.gguf.latents import WholeLatents
        from hotshoe_models.gguf.weights import Tensors

        packed = () if self._packed is None else self._packed.kept
        family = family_of(self._meta)
        found = Tensors(self._headers, family, self.config(), dtype, packed)
        return WholeLatents(found) if family.latents else found

    def format(self) -> WeightFormat:
        """See `ModelFile.format`; `weights` gives what layers have asked this one for."""
        from hotshoe_models.gguf.storage import WEIGHT, Packed
        from hotshoe_models.gguf.weights import places_of

        family = family_of(self._meta)
        places = places_of(self._headers, family)
        numbers = family.unpacked(self._meta)
        kinds = {n: place.info.type.name for n, place in places.items() if n not in numbers}
        factors = any(place.factor != 1 for place in places.values())
        # Its rows are looked up as plain numbers, also where it is the output matrix, too.
        embedding = f"{family.outer['token_embd']}.{WEIGHT}"
        self._packed = Packed(kinds, frozenset({embedding}), factors)
        return self._packed


class GGUFFormat:
    """See `hotshoe.models.model_file.ModelFileFormat`."""

    def choose(self, names: Sequence[str], variant: str | None) -> str | None:
        """See `ModelFileFormat.choose`; other parts than the first count for nothing."""
        first = sorted(name for name in names if _is_first(name))
        if not first:
            return None
        ending = f"-{variant}" if variant is not None else ""
        fitting = [n for n in first if f"-{_stem(n)}".lower().endswith(ending.lower())]
        if not fitting and variant is not None:
            ending = f".{variant}".lower()
            fitting = [n for n in first if _stem(n).lower().endswith(ending)]
        if len(fitting) != 1:
            listed = ", ".join(first[:20])
            why = "several GGUF models" if fitting else f"no GGUF model {variant}"
            example = _stem(fitting[0]) if variant is not None and fitting else "Q4_K_M"
            raise CheckpointError(
                f"there is {why} among {listed}; name the file, or its variant after a colon, as "
                f"in DIRECTORY:{example}"
            )
        return fitting[0]

    def open(self, path: Path) -> GGUFModel:
        """See `ModelFileFormat.open`."""
        part = _PART.fullmatch(path.name)
        if part is None:
            return GGUFModel(_checked([Header(path)]))
        count = int(part["count"])
        if not 1 <= int(part["number"]) <= count <= MAX_PARTS:
            raise CheckpointError(f"{path}: a model has at most {MAX_PARTS} parts, numbered from 1")
        names = [f"{part['stem']}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]
        return GGUFModel(_checked([Header(path.with_name(name)) for name in names]))


def _is_first(name: str) -> bool:
    """Tell whether a model begins with a file; encoders of images (mmproj) are none."""
    part = _PART.fullmatch(name)
    first = part is None or int(part["number"]) == 1
    return first and name.endswith(SUFFIX) and "mmproj" not in name.lower()


def _stem(name: str) -> str:
    """Return a file's name without its folder, its part and its ending."""
    part = _PART.fullmatch(name)
    stem = part["stem"] if part else name.removesuffix(SUFFIX)
    return stem.rpartition("/")[2]


def _checked(headers: list[Header]) -> list[Header]:
    """Return the headers, if they belong together.

    Raises:
        CheckpointError: They do not.
    """
    for i, header in enumerate(headers):
        number, count = header.values.get("split.no", 0), header.values.get("split.count", 1)
        if (number, count or 1) != (i, len(headers)):
            raise CheckpointError(
                f"{header.path} says that it is part {number!r:.20} (from 0) of {count!r:.20}, but "
                f"it is taken for part {i} of {len(headers)}; name the parts as they were made"
            )
    return headers


FORMAT = GGUFFormat()
