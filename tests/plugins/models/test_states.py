"""Engines of models with states: what they refuse, and what `explain` says of them."""

from dataclasses import replace

import pytest

from hotshoe import LLM, EngineConfig, SamplingParams, TokensPrompt
from hotshoe.engine.explain.explanation import explain
from hotshoe.errors import KVTransferError, MemoryLimitError, SelectionError
from hotshoe.layers import BuildContext, StateSpace
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Candidate, Selector, StateSpaceSpec, accept, refuse

FACTS = DeviceFacts("plain", "cpu", "", "", 1 << 30, 1)


@pytest.fixture
def options(variants, checkpoints):
    return {
        "model": str(checkpoints.get(variants["falcon-h1"]).path),
        "platform": "cpu",
        "dtype": "float32",
        "max_model_len": 64,
        "max_num_seqs": 4,
        "skip_tokenizer_init": True,
    }


def test_a_missing_kernel_is_named_where_native_ones_are_required(options, monkeypatch):
    monkeypatch.setattr("hotshoe_cpu.state_space.supports", lambda spec, facts: refuse("none"))
    with pytest.raises(SelectionError, match="slot state_space"):
        LLM(config=EngineConfig(**options, require_native=True))


@pytest.mark.parametrize(
    ("name", "slot"),
    [
        ("falcon-h1", "state_space"),
        ("bamba", "state_space"),
        ("mamba2", "state_space"),
        ("xlstm", "state_space"),
        ("qwen3-next", "gated_delta"),
        ("kimi-linear", "gated_delta"),
    ],
)
def test_cpus_have_kernels(options, variants, checkpoints, name, slot):
    options["model"] = str(checkpoints.get(variants[name]).path)
    found = explain(EngineConfig(**options))
    assert {d.chosen for d in found.decisions if d.slot == slot} == {"native"}


@pytest.mark.parametrize(
    ("name", "mode", "forced"),
    [
        *(("bamba", mode, {}) for mode in ("none", "align", "all")),
        *(("qwen3-next", mode, {}) for mode in ("none", "align", "all")),
        ("falcon-h1", "align", {"state_space": "reference"}),
        ("kimi-linear", "all", {"gated_delta": "reference"}),
    ],
)
def test_answers_are_those_without_drafts(options, variants, checkpoints, name, mode, forced):
    """Drafts are right where an answer is known, and wrong behind the places where they part."""
    options |= {"model": str(checkpoints.get(variants[name]).path), "kernel": forced}
    options["block_size"] = 16
    prompts = [TokensPrompt([*range(9, 9 + n), *[7] * (n % 3)]) for n in (2, 11, 17, 20)]
    params = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True, logprobs=0)
    drawn = replace(params, temperature=0.8, seed=4)
    wanted = [(p, x) for p in prompts for x in (params, drawn)]
    with LLM(config=EngineConfig(**options)) as llm:
        expected = llm.generate(*map(list, zip(*wanted, strict=True)))
    drafts = {"method": "suffix", "num_speculative_tokens": 5, "adaptive": False}
    settings = {"async_scheduling": mode != "none", "max_num_batched_tokens": 24}
    config = EngineConfig(**options, **settings, state_cache_mode=mode, speculative_config=drafts)
    with LLM(config=config) as llm:
        for _ in range(2):
            found = llm.generate(*map(list, zip(*wanted, strict=True)))
            for ours, theirs in zip(found, expected, strict=True):
                assert ours.outputs[0].token_ids == theirs.outputs[0].token_ids
                for mine, other in zip(
                    ours.outputs[0].logprobs, theirs.outputs[0].logprobs, strict=True
                ):
                    assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        stats = llm.stats()
        assert stats.num_accepted_tokens > 20
        assert stats.num_draft_tokens - stats.num_accepted_tokens > 5
        assert (stats.num_hit_tokens > 0) == (mode != "none")


def test_more_sequences_than_states_are_refused_with_the_number_that_fits(options):
    config = EngineConfig(**{**options, "max_num_seqs": 500}, kv_cache_memory_bytes=300_000)
    with pytest.raises(
        MemoryLimitError, match=r"states of 500 .*--max-num-seqs to (\d+) "
    ) as found:
        LLM(config=config)
    fitting = int(str(found.value).split("--max-num-seqs to ")[1].split()[0])
    with LLM(config=replace(config, max_num_seqs=fitting)) as llm:
        prompts = [TokensPrompt([i, 7]) for i in range(fitting)]
        results = llm.generate(prompts, SamplingParams(max_tokens=3, temperature=0))
        assert all(len(result.outputs[0].token_ids) == 3 for result in results)
    with pytest.raises(MemoryLimitError, match="states of"):
        LLM(config=replace(config, max_num_seqs=fitting + 1))


def test_the_latest_state_alone_is_not_passed_on(options):
    with LLM(config=EngineConfig(**options, state_cache_mode="none")) as llm:
        refused = pytest.raises(KVTransferError, match="use state_cache_mode align or all")
        with refused as caught:
            llm.engine.core.kv_exchange().give([1, 2, 3])
        assert caught.value.field == "state_cache_mode"


def test_explain_names_states_and_what_is_reused(options):
    found = explain(EngineConfig(**options, state_cache_mode="align"))
    [note] = [need.note for need in found.memory if need.use == "KV cache"]
    assert " 8 states, " in note and "reused from where steps ended" in note
    slots = {decision.slot: decision for decision in found.decisions}
    assert slots["state_space"].spec.checkpoints == "align"


def test_a_candidate_that_cannot_keep_all_states_is_not_taken():
    spec = StateSpaceSpec(2, 3, 5, 1, 3, "float32", "float32", "float32", 4, checkpoints="all")

    def supports(spec, facts):
        return refuse("it keeps one state") if spec.checkpoints == "all" else accept(5)

    offered = Candidate("state_space", "plain", supports, SLOTS["state_space"].reference)
    for forced, chosen in (({}, "reference"), ({"state_space": "plain"}, None)):
        selector = Selector(SLOTS, [offered], FACTS, forced=forced)
        ctx = BuildContext(selector, "float32", "float32", 4, 32)
        if chosen is None:
            with pytest.raises(SelectionError, match="it keeps one state"):
                StateSpace(ctx, spec, "m.", True)
            continue
        StateSpace(ctx, spec, "m.", True)
        [decision] = selector.decisions.values()
        assert decision.chosen == chosen
