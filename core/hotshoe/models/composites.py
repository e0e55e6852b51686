"""Models whose config.json keeps the text model in `text_config`, beside parts that see or hear.

Their values and names become those of the text model, so that nothing behind asks where they were.
Source of the layouts: checkpoints as transformers 4 and 5 write them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

KEY = "text_config"
#: Where other files have that.
OTHER_KEYS = ("llm_config", "language_config")
#: Of a model that speaks: the part that reads, which has a text part of its own.
READER = "thinker_config"
TIED = "tie_word_embeddings"
#: What a file says of the whole model rules over what it says of the text model.
OF_THE_WHOLE = (
    "architectures",
    "model_type",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "quantization_config",
    "compression_config",
)
#: How names of the text model begin, and what a text model has there. Descriptions of quantization
#: have them as regular expressions too, whose dots have a backslash.
TEXT_NAMES = (
    (r"thinker\\?\.", ""),
    (r"\b(?:llm|language)\\?\.(?=model|lm_head)", ""),
    (r"(?:model\\?\.)?language_model\\?\.lm_head", "lm_head"),
    (r"(?:model\\?\.)?language_model\\?\.(?:model\\?\.)?", "model."),
    (r"model\\?\.text_model\\?\.", "model."),
)


def text_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json with the text model's values in their usual place.

    The embedding is the output matrix too where neither place says otherwise: writers disagree
    about who decides, and a matrix that is missing is noticed.
    """
    reader = values.get(READER)
    if isinstance(reader, Mapping):
        values = {**values, **reader, **_of_the_whole(values)}
    named = [values[key] for key in OTHER_KEYS if isinstance(values.get(key), Mapping)]
    if named and KEY not in values:
        values = {**values, KEY: named[0]}
    text = values.get(KEY)
    if not isinstance(text, Mapping):
        return dict(values)
    flat = {**values, **text, **_of_the_whole(values)}
    said = [place[TIED] for place in (values, text) if place.get(TIED) is not None]
    if said:
        flat[TIED] = min(said, key=lambda value: value is True)
    return flat


def _of_the_whole(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: values[key] for key in OF_THE_WHOLE if values.get(key) is not None}


def text_names(value: Any) -> Any:
    """Return JSON in which names of layers, as values or keys, are those of a text model."""
    if isinstance(value, str):
        for pattern, replacement in TEXT_NAMES:
            value = re.sub(pattern, replacement, value)
        return value
    if isinstance(value, Mapping):
        return {text_names(key): text_names(entry) for key, entry in value.items()}
    return [text_names(entry) for entry in value] if isinstance(value, list) else value
