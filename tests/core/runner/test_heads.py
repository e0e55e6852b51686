"""A head is there where the method needs one, and its lack is named."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError
from hotshoe.runner.heads import check_tree, head_of, on_device, wanted_further
from hotshoe.types.mesh import Axis
from hotshoe.types.trees import NoTreesError, parse_tree

CONFIG = SimpleNamespace(architecture="SomeForCausalLM", path="/somewhere")


def test_one_method_wants_the_further_layers() -> None:
    assert wanted_further(EngineConfig("m", speculative_config={"method": "mtp"}))
    assert not wanted_further(EngineConfig("m", speculative_config={"method": "ngram"}))
    assert not wanted_further(EngineConfig("m"))


def test_a_model_without_a_head_is_refused_only_where_one_is_wanted() -> None:
    head = object()
    wanting, other = (
        SimpleNamespace(further=True, beside=[], stage=Axis(), tree=None),
        SimpleNamespace(further=False, beside=[], stage=Axis()),
    )
    assert head_of(SimpleNamespace(draft_head=head), wanting, CONFIG) is head
    assert head_of(SimpleNamespace(draft_head=head), other, CONFIG) is None
    for model in (SimpleNamespace(), SimpleNamespace(draft_head=None)):
        with pytest.raises(ConfigError, match="SomeForCausalLM in /somewhere has none"):
            head_of(model, wanting, CONFIG)
    wanting.stage = Axis(0, 2)  # which the last stage follows
    assert head_of(SimpleNamespace(draft_head=None), wanting, CONFIG) is None


def test_a_tree_needs_a_head_that_makes_it_and_caches_with_places() -> None:
    full, latent = (
        SimpleNamespace(cache_spec=SimpleNamespace(kind=kind)) for kind in ("full", "latent")
    )
    ctx = SimpleNamespace(tree=parse_tree("[(0,), (1,)]"), cache_layers=[full, full])
    head = SimpleNamespace(tree=ctx.tree, cache_layers=(), forward=len, guess=len)
    check_tree(head, ctx)
    chains = SimpleNamespace(cache_layers=(), forward=len, guess=len)
    with pytest.raises(NoTreesError, match="makes chains alone"):
        check_tree(chains, ctx)
    ctx.cache_layers.append(latent)
    with pytest.raises(NoTreesError, match="has caches of kind latent"):
        check_tree(head, ctx)
    ctx.tree = None
    check_tree(chains, ctx)


def test_heads_sleep_beside_their_models() -> None:
    storages = [torch.ones(3).untyped_storage() for _ in range(3)]
    model = SimpleNamespace(on_device=lambda: storages[:2])
    head = SimpleNamespace(on_device=lambda: storages[2:])
    assert on_device(SimpleNamespace(weights=model, beside=[(head, Path("head"))])) == storages


def test_levels_of_a_tree_need_places() -> None:
    head = SimpleNamespace(cache_layers=(), forward=len, guess=len, likeliest=max)
    tree = parse_tree("[(0,), (0, 0), (0, 0, 0)]")
    check_tree(head, SimpleNamespace(tree=tree, cache_layers=[], max_model_len=2))
    with pytest.raises(ConfigError, match=r"has 2 nodes with children.* max_model_len is 1"):
        check_tree(head, SimpleNamespace(tree=tree, cache_layers=[], max_model_len=1))
