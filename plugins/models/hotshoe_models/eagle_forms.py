"""Keys of an EAGLE-3 head's config.json, as different projects write them.

SpecForge and ModelOpt write the layer's values at the top, with some in `eagle_config`. Speculators
writes the layer's as `transformer_layer_config`. A key that asks for more than one layer of Llama's
or Qwen 3's is refused by name. Called by `eagle`.

Sources: the configuration classes of speculators, SpecForge's configs and its draft of Llama,
ModelOpt's export, and the models of vLLM and SGLang that read them.
"""

from __future__ import annotations

from dataclasses import replace

from hotshoe.errors import CheckpointError
from hotshoe.models import ModelConfig
from hotshoe_models.values import mapping, refuse

#: The layer's family, by the class that a file names; None where a value of its layer says it.
CLASSES: dict[str, str | None] = {
    "Eagle3DraftModel": None,
    "Eagle3LlamaForCausalLM": "llama",
    "Eagle3MiniMaxM2ForCausalLM": "llama",
    "Eagle3Qwen2_5vlForCausalLM": "llama",
    "Eagle3Qwen3ForCausalLM": "qwen3",
    "Eagle3Qwen3vlForCausalLM": "llama",
    "Eagle3Speculator": None,
    "LlamaForCausalLM": "llama",
    "LlamaForCausalLMEagle3": "llama",
}
FAMILIES = ("llama", "qwen3")
#: Keys in `eagle_config` or at the top, the values that are served, and their meaning.
FIXED: dict[str, tuple[tuple[object, ...], str]] = {
    "use_aux_hidden_state": ((True,), "takes states of several layers"),
    "use_input_layernorm_in_first_layer": ((True,), "norms embeddings"),
    "use_last_layernorm": ((True,), "norms what logits are made of"),
    "use_mtp_layernorm": ((False,), "has the norms of EAGLE-3"),
    "parallel_draft_step": ((0, 1), "makes one draft after the other"),
}
NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
#: Keys that only heads of EAGLE-3 have.
OWN = ("draft_vocab_size", "eagle_config")
#: Key of the layers whose states are taken.
TAPPED = "eagle_aux_hidden_state_layer_ids"


def is_eagle3(config: ModelConfig) -> bool:
    """Return whether config.json says that the head is one of EAGLE-3."""
    typed = config.get("speculators_model_type") == "eagle3"
    return (
        typed or "Eagle3" in config.architecture or any(config.get(key) is not None for key in OWN)
    )


def layer_family(config: ModelConfig) -> str:
    """Return the family of the head's layer, "llama" or "qwen3".

    Raises:
        CheckpointError: It is another one, or the file is of another method.
    """
    key = "speculators_model_type"
    if config.get(key, "eagle3") != "eagle3":
        raise refuse(
            config, key, "is read by method eagle3, which reads eagle3; for mtp use method mtp"
        )
    within = mapping(config, "eagle_config")
    for name, (served, why) in FIXED.items():
        value = within.get(name, config.get(name))
        if value is not None and value not in served:
            raise refuse(
                replace(config, values={**config.values, name: value}), name, f"{why} in a head"
            )
    if config.architecture not in CLASSES:
        raise CheckpointError(
            f"config.json: architectures names {config.architecture}, but a head has one layer of "
            f"Llama's or Qwen 3's; it is called {', '.join(sorted(CLASSES))}"
        )
    family = CLASSES[config.architecture]
    if family is None:
        inner = mapping(config, "transformer_layer_config")
        family = str(inner.get("model_type", "llama"))
        if family not in FAMILIES:
            raise refuse(
                replace(config, values={**config.values, **inner}),
                "model_type",
                f"has heads with layers of {' and '.join(FAMILIES)}",
            )
    return family


def merged(config: ModelConfig) -> ModelConfig:
    """Return the configuration with the layer's values and all norms at the top."""
    inner = mapping(config, "transformer_layer_config")
    within = mapping(config, "eagle_config")
    norms = {name: within[name] for name in NORMS if name in within}
    return replace(config, values={**inner, **norms, **config.values})


def chosen_layers(config: ModelConfig, count: int) -> list[int]:
    """Return the layers of the model in front of which a head takes states.

    A list at the top counts so. One in `eagle_config` names the layers behind which it takes them.
    Without a list, one lies near the begin, one in the middle and one near the end, as published.

    Raises:
        CheckpointError: They are no layers of the model in rising order.
    """
    found = config.get(TAPPED)
    behind = mapping(config, "eagle_config").get(TAPPED)
    if not found and isinstance(behind, list):
        found = [i + 1 if type(i) is int else i for i in behind]
    elif not found:
        found = behind
    found = found or [2, count // 2, count - 3]
    valid = isinstance(found, list) and all(type(i) is int and 0 <= i < count for i in found)
    if not valid or sorted(set(found)) != found:
        raise CheckpointError(
            f"config.json: {TAPPED} must be a rising list of layers of the model, which has "
            f"{count}, not {found!r}"
        )
    return found
