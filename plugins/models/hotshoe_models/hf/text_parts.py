"""Classes of transformers that see or hear, of which the part that writes text is kept.

A request brings text alone, so the modules of the other parts are never called.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from hotshoe.layers import BuildContext
from hotshoe.models.composites import KEY, OF_THE_WHOLE, TIED
from hotshoe_models.composite import WHY


def whole_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json as its class reads it: the text part's values in their own place.

    Core has merged them with those of the whole model, and overrides have changed them there.
    """
    text = values.get(KEY)
    if not isinstance(text, Mapping):
        return dict(values)
    moved = {key: values.get(key, text[key]) for key in text if key not in OF_THE_WHOLE}
    rest = {key: value for key, value in values.items() if key not in moved}
    tied = {TIED: values[TIED]} if TIED in values else {}
    return {**rest, **tied, KEY: {**text, **moved, **tied}}


def text_alone(described: PreTrainedConfig, value: str) -> str | dict[str, str]:
    """Return an option's value as transformers takes it for the text part and no other."""
    text = described.get_text_config(decoder=True)
    named = [key for key in described.sub_configs if getattr(described, key, None) is text]
    return {named[0]: value} if named else value


def drop_other_parts(ctx: BuildContext, model: PreTrainedModel) -> None:
    """Take out of a model what is neither its text part nor on the way to it, nor its head.

    The loader passes over the weights of these modules.
    """
    if model.config.get_text_config(decoder=True) is model.config:
        return
    text, output = model.get_decoder(), model.get_output_embeddings()
    names = {module: name for name, module in model.named_modules()}
    kept = [names[part] for part in (text, output) if part in names]
    base = getattr(model, model.base_model_prefix, None)
    for owner in (model, base):
        if owner is None or owner is text:
            continue
        for leaf, child in list(owner.named_children()):
            path = names[child]
            if not any(name == path or name.startswith(f"{path}.") for name in kept):
                delattr(owner, leaf)
                ctx.weights.ignore([rf"^{re.escape(path)}\."], WHY)
