"""What a configuration means for models with states, and what other engines are told of these."""

from types import SimpleNamespace

import torch

from hotshoe.config import EngineConfig
from hotshoe.executor import KVDescriptor
from hotshoe.runner.states import described, draft_options
from hotshoe.types.cache import CachePart, CacheSpec


def test_types_are_those_of_the_model_and_of_exact_sums_unless_said():
    options = {"checkpoints": "none", "conv_state_dtype": None, "state_dtype": "float32"}
    assert draft_options(EngineConfig()) == options | {"drafts": 0, "tree": None}
    config = EngineConfig(
        state_cache_mode="all", conv_state_dtype="float32", state_dtype="bfloat16"
    )
    options = {"checkpoints": "all", "conv_state_dtype": "float32", "state_dtype": "bfloat16"}
    assert draft_options(config) == options | {"drafts": 0, "tree": None}


def test_a_state_may_be_as_many_tokens_behind_as_there_are_drafts():
    drafts = {"method": "ngram", "num_speculative_tokens": 2}
    assert draft_options(EngineConfig(speculative_config=drafts))["drafts"] == 2


def test_what_drafts_bring_does_not_move():
    conv, state = (CachePart(name, "d", (3,), "float32") for name in ("conv", "state"))
    plain, full = CacheSpec("state", 4, (conv, state)), CacheSpec("full", 4, (conv,))
    behind = CacheSpec(
        "state", 4, (conv, state, CachePart("drafts", "td", (2, 5), "float32")), drafts=2
    )
    layers = [SimpleNamespace(cache_spec=spec, kv_scales=None) for spec in (behind, plain, full)]
    assert described("m", layers) == KVDescriptor("m", (plain, plain, full))


def test_scales_of_whole_layers_are_told():
    spec = CacheSpec("full", 4, ())
    scales = [None, torch.tensor([0.5, 2.0]), None]
    layers = [SimpleNamespace(cache_spec=spec, kv_scales=one) for one in scales]
    assert described("m", layers).scales == {1: (0.5, 2.0)}
