"""A head is there where the method needs one, and its lack is named."""

from types import SimpleNamespace

import pytest

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError
from hotshoe.runner.heads import head_of, wants_further

CONFIG = SimpleNamespace(architecture="SomeForCausalLM", path="/somewhere")


def test_one_method_wants_the_further_layers() -> None:
    assert wants_further(EngineConfig("m", speculative_config={"method": "mtp"}))
    assert not wants_further(EngineConfig("m", speculative_config={"method": "ngram"}))
    assert not wants_further(EngineConfig("m"))


def test_a_model_without_a_head_is_refused_only_where_one_is_wanted() -> None:
    head = object()
    wanting, other = SimpleNamespace(further=True), SimpleNamespace(further=False)
    assert head_of(SimpleNamespace(draft_head=head), wanting, CONFIG) is head
    assert head_of(SimpleNamespace(draft_head=head), other, CONFIG) is None
    for model in (SimpleNamespace(), SimpleNamespace(draft_head=None)):
        with pytest.raises(ConfigError, match="SomeForCausalLM in /somewhere has none"):
            head_of(model, wanting, CONFIG)
