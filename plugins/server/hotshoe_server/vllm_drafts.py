"""The JSON object of vLLM's `--speculative-config`, as the one of `hotshoe serve`.

Called by the table of vLLM's flags. What is not known here passes, so that the method that is meant
refuses it by its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

#: Methods by their names there.
METHODS: Mapping[str, str] = {
    "deepseek_mtp": "mtp",
    "gemma4_mtp": "gemma4_assistant",
    "glm4_moe_lite_mtp": "mtp",
    "glm4_moe_mtp": "mtp",
    "mimo_mtp": "mtp",
    "qwen3_5_mtp": "mtp",
    "qwen3_next_mtp": "mtp",
    "ngram_gpu": "ngram",
}
#: Those that run elsewhere, and where.
MOVED: Mapping[str, str] = {"ngram_gpu": "n-grams are looked up on the host"}
#: Entries without effect, and why.
IGNORED: Mapping[str, str] = {
    "attention_backend": "--kernel attention=NAME chooses",
    "disable_by_batch_size": "drafts are made where they pay",
    "disable_padded_drafter_batch": "drafts of a step are as many as there are",
    "draft_tensor_parallel_size": "a head is divided as the model is, and a draft model is whole",
    "enforce_eager": "--enforce-eager holds for both",
    "use_local_argmax_reduction": "each rank has all logits of a draft",
}
#: Parts of names of models that tell a method where none is named; the first one holds.
NAMED = (
    *(("eagle3", "eagle3"), ("eagle-3", "eagle3"), ("eagle", "eagle"), ("medusa", "medusa")),
    ("-assistant", "gemma4_assistant"),
)


def meant(value: str, say: Callable[[str], None]) -> str:
    """Return the value of `--speculative-config` that stands for one of vLLM's.

    Args:
        value: A JSON object, or one word.
        say: Told of every entry that has no effect here, and of a method that is chosen
            or runs elsewhere, in a line.
    """
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return _method(value, say)
    if not isinstance(found, dict):
        return value
    kept: dict[str, object] = {}
    for key, entry in found.items():
        if key not in IGNORED:
            kept[key] = entry
        elif entry not in (None, False):
            say(f"--speculative-config: {key} of vLLM has no effect here: {IGNORED[key]}")
    model = kept.get("model")
    if model in ("ngram", "[ngram]"):
        del kept["model"]
        kept.setdefault("method", "ngram")
    elif isinstance(model, str) and kept.get("method") is None:
        name = model.lower()
        chosen = next((m for part, m in NAMED if part in name), "draft_model")
        say(f"--speculative-config names no method; by the name of its model it is {chosen}")
        kept["method"] = chosen
    elif isinstance(model, str) and kept["method"] == "mtp" and "-assistant" in model.lower():
        kept["method"] = "gemma4_mtp"
    if isinstance(method := kept.get("method"), str):
        kept["method"] = _method(method, say)
    return json.dumps(kept)


def _method(name: str, say: Callable[[str], None]) -> str:
    """Return a method by its name here."""
    if name in MOVED:
        say(f"--speculative-config: method {name} of vLLM is {METHODS[name]} here: {MOVED[name]}")
    return METHODS.get(name, name)
