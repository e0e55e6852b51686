"""Which Triton candidates are offered, and how an installed compiler is found."""

import importlib.machinery
import importlib.util
from dataclasses import replace

import pytest
from tests.platforms.xpu.conftest import on_host

from hotshoe.slots import AttentionSpec, NormSpec
from hotshoe_triton import norm
from hotshoe_xpu.candidates import has_triton, offered, with_triton


def test_the_compiler_is_found_without_importing_it(tmp_path, monkeypatch) -> None:
    assert not has_triton(), "the package index's Triton does not compile for Intel GPUs"
    spec = importlib.machinery.ModuleSpec("triton", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert not has_triton()
    (tmp_path / "backends" / "intel").mkdir(parents=True)
    assert has_triton()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not has_triton()


@pytest.mark.parametrize("arch", ["pvc", "dg2", "bmg"])
def test_candidates_say_what_they_miss(arch: str) -> None:
    judge = with_triton(norm.supports)
    facts, spec = replace(on_host(), arch=arch), NormSpec(64, 1e-5, "bfloat16")
    assert "triton-xpu" in judge(spec, facts).reason
    assert judge(spec, replace(facts, features=frozenset({"triton"}))).score == 50
    assert not judge(spec, replace(facts, features=frozenset({"triton"}), arch="xe3")).accepted


@pytest.mark.parametrize("kind", ["int8", "float8_e4m3fn", "float8_e5m2"])
def test_tritons_attention_takes_caches_of_8_bits(kind: str) -> None:
    facts = replace(on_host(), arch="bmg", features=frozenset({"triton"}))
    spec = AttentionSpec(8, 2, 64, "bfloat16", kind, 16, 0.125, kv_scales="token")
    taken = {
        c.name for c in offered() if c.slot == "attention" and c.supports(spec, facts).accepted
    }
    assert taken == {"triton", "triton_alone"}


def test_every_kernel_slot_has_a_triton_candidate() -> None:
    triton = {c.slot for c in offered() if c.name == "triton"}
    assert triton >= {"attention", "rotary_and_cache", "embedding", "sample", "linear"}


def test_one_candidate_of_each_slot_is_batch_invariant_where_triton_is() -> None:
    claimed = {c.slot: c.name for c in offered() if c.batch_invariant and c.slot != "transfer"}
    assert claimed["attention"] == "triton_alone" and claimed["linear"] == "one_tile"
    # Products around latent attention are PyTorch's, which choose by the number of tokens. Of
    # blocks with states nobody has claimed it yet; columns of adapters are split by their tokens.
    without = {"communicator", "transfer", "mla_attention", "gated_delta", "state_space"}
    without |= {
        "selective_scan",
        "rg_lru",
        "short_conv",
        "indexer",
        "block_indexer",
        "sparse_mla_attention",
        "lora",
    }
    without |= {"compressed_attention", "hyper_connection", "tree_attention", "relative_attention"}
    slots = {c.slot for c in offered()} - without
    assert set(claimed) == slots
