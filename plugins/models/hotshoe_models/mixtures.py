"""Reads config.json's keys of experts into a `Mixture`; every complaint names its key.

Families say under which keys they keep numbers of experts, and how their routers choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hotshoe.layers import Mixture
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.spec import LayerSpec
from hotshoe_models.values import activation, count, flag, number, refuse, with_defaults

#: What files call the number of experts. Some spell their family's key in another one's manner.
COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
#: What files call the function that scores experts. Few families read it; none may contradict it.
SCORINGS = ("scoring_func", "score_func", "score_function", "moe_router_activation_func")

DENSE, SPARSE = "dense", "sparse"


def with_expert_defaults(config: ModelConfig, defaults: Mapping[str, Any]) -> ModelConfig:
    """Fill in absent keys; the number of experts comes under the key that the defaults have."""
    values = dict(config.values)
    key = next(name for name in COUNTS if name in defaults)
    other = next((name for name in COUNTS if name in values), key)
    if other != key:
        values[key] = values.pop(other)
    return with_defaults(replace(config, values=values), defaults)


def mixture(
    config: ModelConfig,
    router: RouterSpec,
    *,
    experts: str = "num_experts",
    top_k: str = "num_experts_per_tok",
    size: str = "moe_intermediate_size",
    **differences: Any,
) -> Mixture:
    """Describe experts.

    Args:
        config: With the family's defaults.
        router: How tokens choose.
        experts, top_k, size: Keys of how many there are, how many a token chooses, and of the
            channels between an expert's matrices.
        differences: Further fields of `Mixture`.

    Raises:
        CheckpointError: A value is missing or malformed, or the router cannot choose so.
    """
    number_of, chosen = config.size(experts), config.size(top_k)
    if number_of % router.groups:
        raise refuse(config, experts, f"divides its experts into {router.groups} equal groups")
    eligible = number_of // router.groups * router.groups_kept
    if chosen > eligible:
        raise refuse(config, top_k, f"has {eligible} experts to choose from")
    for key in SCORINGS:
        if config.get(key, router.scoring) != router.scoring:
            raise refuse(config, key, f"scores experts by {router.scoring} here")
    if "activation" not in differences:
        differences["activation"] = activation(config, "hidden_act")
    return Mixture(
        hidden_size=config.size("hidden_size"),
        intermediate_size=config.size(size),
        num_experts=number_of,
        top_k=chosen,
        router=router,
        **differences,
    )


def grouped_router(config: ModelConfig, experts: str = "n_routed_experts") -> RouterSpec:
    """Describe a router as DeepSeek-V3 has it: sigmoid, a correction, the best groups first.

    Args:
        experts: Key of how many there are.
    """
    groups, kept = config.size("n_group"), config.size("topk_group")
    if kept > groups:
        raise refuse(config, "topk_group", f"has {groups} groups of experts")
    if groups > 1 and config.size(experts) < 2 * groups:
        raise refuse(config, "n_group", "counts the two best experts of each group")
    return RouterSpec(
        "sigmoid",
        renormalize=flag(config, "norm_topk_prob"),
        scale=number(config, "routed_scaling_factor"),
        correction=True,
        groups=groups,
        groups_kept=kept,
        group_score="top2",
    )


def with_experts(
    layers: Sequence[LayerSpec], experts: Mixture, chosen: Callable[[int], bool]
) -> tuple[LayerSpec, ...]:
    """Give experts to the layers whose index is chosen."""
    return tuple(
        replace(layer, mixture=experts) if chosen(i) else layer for i, layer in enumerate(layers)
    )


def sparse_types(config: ModelConfig) -> Callable[[int], bool]:
    """Tell which layers have experts: as `mlp_layer_types` says, or all behind the first dense ones
    (`first_k_dense_replace`); behind the first layer where the file says neither.

    Raises:
        CheckpointError: `mlp_layer_types` is no list of the two words.
    """
    key, layers = "mlp_layer_types", config.size("num_hidden_layers")
    dense = (
        count(config, "first_k_dense_replace") if "first_k_dense_replace" in config.values else 1
    )
    types = config.get(key) or [DENSE if i < dense else SPARSE for i in range(layers)]
    listed = isinstance(types, list) and all(kind in (DENSE, SPARSE) for kind in types)
    if not listed or len(types) != layers:
        raise refuse(config, key, f"needs {DENSE} or {SPARSE} for each of {layers} layers")
    return lambda i: types[i] == SPARSE


def sparse_layers(config: ModelConfig) -> Callable[[int], bool]:
    """Tell which layers have experts where `decoder_sparse_step` and `mlp_only_layers` say it.

    Raises:
        CheckpointError: `mlp_only_layers` is no list of indices.
    """
    every, dense = config.size("decoder_sparse_step"), config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(i) is int for i in dense):
        raise refuse(config, "mlp_only_layers", "needs a list of layer indices")
    return lambda i: (i + 1) % every == 0 and i not in dense
