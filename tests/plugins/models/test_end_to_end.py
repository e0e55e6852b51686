"""The engine writes transformers' greedy tokens: with chunks, prefix hits, preemption."""

import copy
import importlib
import importlib.util
import random
from dataclasses import replace

import pytest
import torch

from hotshoe import LLM, EngineConfig, SamplingParams, TokensPrompt
from hotshoe.engine.start.cache_plan import request_blocks, state_blocks
from hotshoe.engine.start.setup import prepare
from hotshoe.errors import ConfigError
from hotshoe.lazy import resolve_lazy
from hotshoe.platform import Available, DeviceFacts, Platform
from hotshoe.plugins import PluginManager, hookimpl
from hotshoe.plugins.manager import EntryPoint

#: Platforms, each with a small block size that it takes.
BLOCK_SIZES = {"reference": 4, "cpu": 8, "cuda": 16}
PACKAGES = ["hotshoe_models", "hotshoe_quantization", "hotshoe_cpu", "hotshoe_cuda"]


class ReferencePlatform(Platform):
    """Plain references for every slot."""

    name = "reference"

    def probe(self):
        return Available(score=0)

    def facts(self):
        return DeviceFacts("reference", "cpu", "any", "any", 1 << 30, 1)


class ReferencePlugin:
    HOTSHOE_HOOK_API = 2

    @hookimpl
    def hotshoe_platforms(self):
        return {"reference": ReferencePlatform}


@pytest.fixture(scope="module")
def plugins():
    points = [EntryPoint("reference", "tests", "0", ReferencePlugin)]
    for package in PACKAGES:
        if importlib.util.find_spec(package) is not None:
            module = importlib.import_module(f"{package}.plugin")
            points.append(EntryPoint(package, package, "0", lambda m=module: m))
    return PluginManager(points)


@pytest.fixture
def make_llm(request, plugins):
    """Make engines whose cache holds one request of full length and a little more."""
    platforms = plugins.mapping("hotshoe_platforms")
    if request.param not in platforms:
        pytest.skip(f"platform {request.param} is not installed")
    finding = resolve_lazy(platforms[request.param])().probe()
    if not isinstance(finding, Available):
        pytest.skip(f"needs hardware of platform {request.param}: {finding}")
    made = []

    def make(checkpoint, max_model_len, spare=1, **options):
        config = EngineConfig(
            model=str(checkpoint.path),
            model_impl=checkpoint.impl,
            platform=request.param,
            max_model_len=max_model_len,
            skip_tokenizer_init=True,
            **{"dtype": "float32", "block_size": BLOCK_SIZES[request.param], **options},
        )
        setup = prepare(config, plugins)
        worker = setup.torch_worker()
        layout = worker.layout(worker.build()[0])
        step = setup.config.max_num_batched_tokens
        states = state_blocks(setup.config, layout, setup.config.max_num_seqs)
        needs = zip(request_blocks(layout, max_model_len, step), states, layout.pools, strict=True)
        size = sum(max(need + spare, first) * pool.block_bytes for need, first, pool in needs)
        config = replace(config, kv_cache_memory_bytes=size)
        made.append(LLM(config=config, plugins=plugins))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


def draw(count):
    return [random.randrange(256) for _ in range(count)]


def assert_greedy(llm, checkpoint, prompts, count):
    """Generate for all prompts at once; transformers' logits must choose every token."""
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    results = llm.generate([TokensPrompt(p) for p in prompts], params)
    for prompt, result in zip(prompts, results, strict=True):
        assert len(result.outputs[0].token_ids) == count
        checkpoint.assert_greedy(prompt, result.outputs[0].token_ids)
    return results


def test_chunks_preemption_and_prefix_hits(engine_variant, checkpoints, make_llm):
    """Prompts come in chunks beside decoding requests, for all of which there is no room; then
    prompts that share a start."""
    variant = engine_variant
    checkpoint = checkpoints.get(variant)
    few = {"max_num_batched_tokens": 7, "max_num_seqs": 5, "state_cache_mode": "align"}
    # A pool of layers with windows alone would keep no prefix beside other requests.
    llm = make_llm(checkpoint, variant.max_model_len, spare=4, **few)
    assert_greedy(llm, checkpoint, [draw(n) for n in (3, 11, 1, 9, 6)], 18)
    # Windows stop growing before there is a shortage, and states do not grow.
    if kinds(llm) & {"full", "latent"} and "window" not in kinds(llm) and in_small_blocks(llm):
        assert llm.engine.core.stats().num_preemptions > 0
    shared = draw(17)
    assert_greedy(llm, checkpoint, [shared], 1)
    hits = assert_greedy(llm, checkpoint, [shared + draw(2), shared, shared + draw(5)], 8)
    assert all(hit.num_cached_tokens >= 16 for hit in hits)


@pytest.mark.parametrize(
    ("name", "count"), [("falcon-h1", 27), ("qwen3-next", 27), ("glm5-next", 50)]
)
def test_states_of_which_none_is_kept_are_computed_again(
    variants, name, count, checkpoints, make_llm
):
    """Prompts that fit the cache together, but not with what they generate."""
    checkpoint = checkpoints.get(variants[name])
    llm = make_llm(checkpoint, 64, max_num_batched_tokens=8, max_num_seqs=5)
    assert_greedy(llm, checkpoint, [draw(random.randint(2, 4)) for _ in range(5)], count)
    if in_small_blocks(llm):
        assert llm.engine.core.stats().num_preemptions > 0


@pytest.mark.parametrize("name", ["gemma3", "qwen2-windows", "phi3-partial-window"])
def test_windows_drop_what_no_query_sees(variants, name, checkpoints, make_llm):
    """Texts far longer than the window, while steps overlap; then one behind a cached prefix."""
    checkpoint = checkpoints.get(variants[name])
    options = {"async_scheduling": True, "max_num_batched_tokens": 9, "max_num_seqs": 3}
    llm = make_llm(checkpoint, 64, **options)
    assert "window" in kinds(llm)
    shared = draw(40)
    assert_greedy(llm, checkpoint, [draw(23), draw(31), shared], 16)
    assert_greedy(llm, checkpoint, [shared], 1)
    (hit,) = assert_greedy(llm, checkpoint, [shared + draw(3)], 12)
    assert hit.num_cached_tokens == whole_blocks(llm, 40)


def test_chunks_of_texts_are_left_behind(variants, checkpoints, make_llm):
    """Texts of three chunks: in pieces, behind cached prefixes, and with too little memory."""
    checkpoint = checkpoints.get(variants["llama4-chunks"])
    options = {"async_scheduling": True, "max_num_batched_tokens": 33, "max_num_seqs": 4}
    llm = make_llm(checkpoint, 128, **options)
    assert kinds(llm) == {"full", "window"}
    shared = draw(104)
    assert_greedy(llm, checkpoint, [shared], 1)
    hits = assert_greedy(llm, checkpoint, [shared + draw(3), shared[:96], shared[:50]], 4)
    assert [hit.num_cached_tokens for hit in hits] == [
        whole_blocks(llm, count) for count in (104, 95, 49)
    ]
    assert_greedy(llm, checkpoint, [draw(n) for n in (3, 4, 5, 6)], 50)
    assert llm.engine.core.stats().num_preemptions > 0


@pytest.mark.parametrize("mode", ["align", "all"])
@pytest.mark.parametrize(
    "name", ["falcon-h1", "bamba", "mamba2", "qwen3-next", "kimi-linear", "zaya"]
)
def test_states_are_found_again(variants, name, mode, checkpoints, make_llm):
    """Equal starts in one step, in later ones, and with room for few states."""
    checkpoint = checkpoints.get(variants[name])
    options = {"max_num_batched_tokens": 9, "max_num_seqs": 5, "async_scheduling": True}
    llm = make_llm(checkpoint, 64, state_cache_mode=mode, **options)
    shared = draw(25)
    assert_greedy(llm, checkpoint, [shared, shared, shared + draw(3)], 9)
    assert_greedy(llm, checkpoint, [draw(n) for n in (30, 7, 18, 2)], 20)
    assert_greedy(llm, checkpoint, [shared], 1)
    hits = assert_greedy(llm, checkpoint, [shared + draw(2), shared + draw(30)], 8)
    assert all(hit.num_cached_tokens >= 16 for hit in hits)


@pytest.mark.parametrize("name", ["falcon-h1", "mamba2", "qwen3-next-dense", "glm5-next"])
def test_states_come_back_from_sleep(variants, name, checkpoints, make_llm):
    checkpoint = checkpoints.get(variants[name])
    llm = make_llm(checkpoint, 64, max_num_seqs=3, state_cache_mode="align")
    shared = draw(20)
    assert_greedy(llm, checkpoint, [shared], 5)
    for level in (1, 2):
        llm.sleep(level)
        llm.wake_up()
        (result,) = assert_greedy(llm, checkpoint, [shared], 5)
        assert result.num_cached_tokens == 0


def test_windows_are_passed_on(variants, checkpoints, make_llm):
    """What one engine computed of a long prompt lets another go on behind it."""
    checkpoint = checkpoints.get(variants["gemma3"])
    there, here = (
        make_llm(checkpoint, 64, max_num_batched_tokens=16, max_num_seqs=3) for _ in "12"
    )
    prompt = draw(40)
    assert_greedy(there, checkpoint, [prompt], 1)
    assert here.engine.core.kv_exchange().take(there.engine.core.kv_exchange().give(prompt)) == ""
    (hit,) = assert_greedy(here, checkpoint, [prompt + draw(3)], 12)
    assert hit.num_cached_tokens == whole_blocks(here, 40)


@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3"])
def test_latents_are_passed_on(variants, name, checkpoints, make_llm):
    """Half of a request here, half there, whose blocks are twice as large."""
    checkpoint = checkpoints.get(variants[name])
    there, here = (make_llm(checkpoint, 64, block_size=size) for size in (16, 32))
    assert_handed_over(there, here, checkpoint, 32)


@pytest.mark.parametrize("name", ["falcon-h1", "mamba2", "zaya", "qwen3-next"])
@pytest.mark.parametrize("mode", ["align", "all"])
def test_states_are_passed_on(variants, name, mode, checkpoints, make_llm):
    checkpoint = checkpoints.get(variants[name])
    there, here = (make_llm(checkpoint, 64, state_cache_mode=mode) for _ in "12")
    assert_handed_over(there, here, checkpoint, 40 - 40 % here.engine.setup.config.block_size)


def assert_handed_over(there, here, checkpoint, taken):
    """One engine computes a prompt of 40 tokens, the other all that follows."""
    prompt = draw(40)
    assert_greedy(there, checkpoint, [prompt], 1)
    assert here.engine.core.kv_exchange().take(there.engine.core.kv_exchange().give(prompt)) == ""
    (hit,) = assert_greedy(here, checkpoint, [prompt + draw(3)], 12)
    assert hit.num_cached_tokens == taken > 0


def whole_blocks(llm, count):
    """Return how many of the first tokens lie in blocks that are full of them."""
    return count - count % llm.engine.setup.config.block_size


def in_small_blocks(llm):
    """Tell whether requests of few tokens need several blocks each."""
    return llm.engine.setup.config.block_size < 16


def kinds(llm):
    """Return the kinds of an engine's cache groups."""
    return {group.spec.kind for group in llm.engine.core.info.caches.groups}


def test_longrope_beyond_the_original_length(variants, checkpoints, make_llm):
    """With room for long texts all are rotated as long ones, as transformers rotates long ones."""
    variant = variants["phi3-longrope-long"]
    checkpoint = checkpoints.get(variant)
    llm = make_llm(checkpoint, variant.max_model_len, max_num_batched_tokens=16, max_num_seqs=4)
    assert_greedy(llm, checkpoint, [draw(33), draw(50)], 12)


def test_dynamic_beyond_the_trained_length(variants, checkpoints, make_llm):
    """Asked for longer texts, the base is that of the longest; see `hotshoe.layers.Rotation`."""
    checkpoint = checkpoints.get(variants["llama-dynamic"])
    llm = make_llm(checkpoint, 32)
    tokens = draw(14)
    params = SamplingParams(temperature=0.0, max_tokens=18, ignore_eos=True)
    (result,) = llm.generate([TokensPrompt(tokens)], params)
    checkpoint.logits(tokens[:1])  # theirs keeps the base of the longest text, until a short one
    checkpoint.assert_greedy(tokens, result.outputs[0].token_ids, length=32)
    with pytest.raises(ConfigError, match=r"max_model_len 33 exceeds the model's 32"):
        make_llm(checkpoint, 33)


def test_int8_stays_near(int8_variant, checkpoints, make_llm):
    """Every matrix but those that make logits is quantized, and the results show it, a little.

    Rounding now and then grows to many times its usual size, so half of the prompts must be near.
    """
    checkpoint = checkpoints.get(int8_variant)
    llm = make_llm(checkpoint, int8_variant.max_model_len, quantization="int8")
    linear = [decision.spec for decision in llm.decisions if decision.slot == "linear"]
    plain = [spec for spec in linear if spec.weight is None]
    assert plain and all(spec.out_dtype == "float32" for spec in plain) and len(linear) > 1
    mixtures = [decision.spec for decision in llm.decisions if decision.slot == "moe"]
    small = int8_variant.family in ("Gemma3n", "xLSTM")  # matrices of weights and of gates
    assert len(plain) == 1 or mixtures or small
    assert all(spec.gate_up.weight and spec.down.weight for spec in mixtures)

    ours, exact = first_logprobs(llm, [checkpoint], (12, 17, 5) * 3)
    # A recurrence carries errors on, and random ones do not forget.
    limit = 1.0 if "state" in kinds(llm) else 0.5
    assert 1e-4 < (ours - exact).abs().mean(1).median().item() < limit


def test_bfloat16_is_as_near_as_theirs(bfloat16_variant, checkpoints, make_llm):
    """Errors against float32 are at most twice those that transformers makes in bfloat16.

    Rounding now and then grows to fifty times its usual size, theirs as well as ours, and then a
    mean says who was unlucky. So half of the prompts have to be near.
    """
    checkpoint = checkpoints.get(bfloat16_variant)
    rounded = replace(checkpoint, model=copy.deepcopy(checkpoint.model).bfloat16())
    llm = make_llm(checkpoint, bfloat16_variant.max_model_len, dtype="bfloat16")
    ours, exact, theirs = first_logprobs(llm, [checkpoint, rounded], (12, 17, 5) * 4)
    our_errors, their_errors = ((found - exact).abs().mean(1) for found in (ours, theirs))
    assert 1e-4 < our_errors.median() <= 2 * their_errors.median()


def first_logprobs(llm, checkpoints, lengths=(12, 17, 5)):
    """Return our log probabilities of the likeliest next tokens of prompts, then transformers'.

    Each is [prompts, tokens].
    """
    prompts = [draw(n) for n in lengths]
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=20)
    results = llm.generate([TokensPrompt(p) for p in prompts], params)
    found = [result.outputs[0].logprobs[0] for result in results]
    ours = [torch.tensor(one.logprobs) for one in found]
    theirs = [
        [
            checkpoint.logits(prompt)[-1].log_softmax(-1)[list(one.token_ids)]
            for prompt, one in zip(prompts, found, strict=True)
        ]
        for checkpoint in checkpoints
    ]
    return [torch.stack(rows) for rows in (ours, *theirs)]
