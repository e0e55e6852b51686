"""The JSON object of vLLM's `--speculative-config`, as the one of `hotshoe serve`.

Called by the table of vLLM's flags. What is not known here passes, so that the method that is meant
refuses it by its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

#: Methods by their names there.
METHODS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "bailing_hybrid_mtp",
            "bailing_hybrid_v3_mtp",
            "deepseek_mtp",
            "dots3_note_mtp",
            "ernie_mtp",
            "exaone4_5_mtp",
            "exaone_moe_mtp",
            "glm4_moe_lite_mtp",
            "glm4_moe_mtp",
            "glm5_next_mtp",
            "hy_v3_mtp",
            "hy_v4_mtp",
            "longcat_flash_mtp",
            "mimo_mtp",
            "mimo_v2_mtp",
            "minimax_m3_mtp",
            "nemotron_h_mtp",
            "qwen3_5_mtp",
            "qwen3_next_mtp",
            "step3p5_mtp",
        ),
        "mtp",
    ),
    "gemma4_mtp": "gemma4_assistant",
    "ngram_gpu": "ngram_device",
}
_SIZE = "a head is divided as the model is, and a draft model is whole"
_PAY = "drafts are made where they pay"
#: Entries without effect, and why.
IGNORED: Mapping[str, str] = {
    "attention_backend": "--kernel attention=NAME chooses",
    "code_revision": "no code of a checkpoint is ever run",
    "disable_by_batch_size": _PAY,
    "disable_eagle_block_drop": "a head reads a cached prefix whole",
    "disable_logprobs": "log probabilities are the model's own",
    "disable_mqa_scorer": "drafts are verified in one step",
    "disable_padded_drafter_batch": "drafts of a step are as many as there are",
    "draft_load_config": "--load-format holds for both",
    "draft_sample_method": "drafts are the likeliest tokens",
    "draft_tensor_parallel_size": _SIZE,
    "enforce_eager": "--enforce-eager holds for both",
    "index_share_for_mtp_iteration": "each draft chooses what it reads",
    "kv_cache_dtype": "--kv-cache-dtype holds for both",
    "max_model_len": "drafts are made for sequences of any length",
    "moe_backend": "--kernel moe=NAME chooses",
    "num_speculative_tokens_per_batch_size": _PAY,
    "tensor_parallel_size": _SIZE,
    "use_local_argmax_reduction": "each rank has all logits of a draft",
}
#: Values that ask for what is done here anyway. Others pass, and are refused.
AS_HERE: Mapping[str, Sequence[object]] = {
    "acceptance_method": ("rejection_sampler",),
    "enable_adaptive_verification": (False,),
    "parallel_drafting": (False,),
    "rejection_sample_method": ("standard", "block"),
    "use_heterogeneous_vocab": (False,),
}
#: Entries by flags of their own.
ENTRIES: Mapping[str, str] = {
    "--speculative-model": "model",
    "--num-speculative-tokens": "num_speculative_tokens",
    "--ngram-prompt-lookup-max": "prompt_lookup_max",
    "--ngram-prompt-lookup-min": "prompt_lookup_min",
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}
#: Names of a model that stand for a method.
NGRAM = ("ngram", "[ngram]")
#: Parts of names of models that tell a method where none is named; the first one holds.
NAMED = (
    *(("eagle3", "eagle3"), ("eagle-3", "eagle3"), ("eagle", "eagle"), ("medusa", "medusa")),
    ("-assistant", "gemma4_assistant"),
)


def meant(value: str, say: Callable[[str], None]) -> str:
    """Return the value of `--speculative-config` that stands for one of vLLM's.

    Args:
        value: A JSON object, or one word.
        say: Told of every entry that has no effect here, and of a method that is chosen, in a
            line.
    """
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return _method(value)
    if not isinstance(found, dict):
        return value
    kept: dict[str, object] = {}
    for key, entry in found.items():
        if entry is None or entry in AS_HERE.get(key, ()):
            continue  # as where it is left out
        if key in IGNORED:
            if entry is not False:
                say(f"--speculative-config: {key} of vLLM has no effect here: {IGNORED[key]}")
        elif key == "suffix_decoding_max_cached_requests":
            kept |= _cached(entry, say)
        else:
            kept[key] = entry
    model = kept.get("model")
    if model in NGRAM:
        del kept["model"]
        kept.setdefault("method", "ngram")
    elif isinstance(model, str) and "method" not in kept:
        kept["method"] = _by_name(model, say)
    elif isinstance(model, str) and kept["method"] == "mtp" and "-assistant" in model.lower():
        kept["method"] = "gemma4_mtp"
    if isinstance(method := kept.get("method"), str):
        kept["method"] = _method(method)
    return json.dumps(kept)


def with_method(words: Sequence[str], flag: str, say: Callable[[str], None]) -> list[str]:
    """Return a command line that says the method of a model that is named by a word of its own.

    Args:
        words: `--speculative-config.KEY=VALUE` among them, or KEY and VALUE as two words.
        flag: `--speculative-config`.
        say: See `meant`.
    """
    entry = f"{flag}.model"
    names = [word.partition("=")[0] for word in words]
    if entry not in names or flag in names or f"{flag}.method" in names:
        return list(words)
    place = names.index(entry)
    several = "=" not in words[place]
    model = "".join(words[place + 1 : place + 2]) if several else words[place].partition("=")[2]
    if model in NGRAM:
        return [*words[:place], f"{flag}.method", "ngram", *words[place + 1 + several :]]
    return [*words, f"{flag}.method", _by_name(model, say)]


def _by_name(model: str, say: Callable[[str], None]) -> str:
    """Return the method of a model, where none is named."""
    name = model.lower()
    chosen = next((method for part, method in NAMED if part in name), "draft_model")
    say(f"--speculative-config names no method; by the name of its model it is {chosen}")
    return chosen


def _cached(requests: object, say: Callable[[str], None]) -> dict[str, object]:
    """Return what bounds finished answers that method suffix keeps, which are counted by tokens."""
    if requests == 0:
        return {"suffix_decoding_max_cached_tokens": 0}
    say(
        "--speculative-config: suffix_decoding_max_cached_requests of vLLM has no effect here: "
        "suffix_decoding_max_cached_tokens bounds them"
    )
    return {}


def _method(name: str) -> str:
    """Return a method by its name here."""
    return METHODS.get(name, "mtp" if name.endswith("_mtp") else name)
