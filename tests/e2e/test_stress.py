"""Whatever an engine is busy with, a request has the answer that it has in a quiet one.

Random arrivals, aborts, little memory, odd budgets, overlapped steps, prefix hits, drafts, sleep
and lost caches, over every kind of cache. The seed of a round stands in its failure.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import transformers

from hotshoe import LLM, EngineConfig, SamplingParams, TokensPrompt
from hotshoe.engine.start.cache_plan import request_blocks, state_blocks
from hotshoe.engine.start.setup import prepare
from hotshoe.types import CompletionOutput

ROUNDS = 8
VOCAB = 256
MAX_LEN = 96
BLOCK = 16
#: Tokens whose log probabilities are nearer than this may change places by rounding.
TIE = 1e-3
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": MAX_LEN,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
LAYERS = ["linear_attention", "full_attention", "linear_attention"]
#: A model for each kind of cache, and what differs from SIZES.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("Qwen3", {}),
    "experts": ("Qwen3Moe", {"num_experts": 6, "num_experts_per_tok": 2}),
    "windows": (
        "Gemma3Text",
        {"sliding_window": 20, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]},
    ),
    "latents": (
        "DeepseekV3",
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 24,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "first_k_dense_replace": 3,
            "n_routed_experts": 8,
        },
    ),
    "states": (
        "Qwen3Next",
        {
            "layer_types": LAYERS,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        },
    ),
}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False, "prompt_lookup_max": 3}
SHARED = [random.Random(7).randrange(VOCAB) for _ in range(40)]


@dataclass
class Wish:
    """A request of the load.

    Attributes:
        arrives: The step before which it comes.
        leaves: How many tokens it waits for; None: for all.
        found: Its answer.
        reused: Its beginning was found in a cache.
    """

    prompt: list[int]
    params: SamplingParams
    arrives: int
    leaves: int | None = None
    found: CompletionOutput | None = None
    reused: bool = False


def load(rng: random.Random) -> list[Wish]:
    """Draw requests: many share their beginnings, and repeat themselves."""
    wishes = []
    for _ in range(rng.randint(12, 30)):
        own = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 12))]
        begin = SHARED[: rng.choice((0, 0, 7, 16, 33, 40))]
        prompt = begin + own * rng.choice((1, 1, 2))
        params = SamplingParams(
            temperature=0.0,
            max_tokens=rng.randint(1, MAX_LEN - len(prompt) - 1),
            ignore_eos=True,
            logprobs=2,
            presence_penalty=rng.choice((0.0, 0.0, 0.3)),
        )
        if rng.random() < 0.2:
            params = replace(params, temperature=0.5, seed=rng.randrange(2**31), top_k=20)
        leaves = rng.randint(0, params.max_tokens) if rng.random() < 0.15 else None
        wishes.append(Wish(prompt, params, rng.randint(0, 60), leaves))
    return wishes


def settings(kind: str, rng: random.Random) -> dict[str, Any]:
    """Draw how the busy engine is set."""
    return {
        "max_num_batched_tokens": rng.choice((16, 17, 23, 64, 300)),
        "max_num_seqs": rng.choice((2, 5, 8)),
        "async_scheduling": rng.random() < 0.5,
        "enable_prefix_caching": rng.random() < 0.8,
        "state_cache_mode": rng.choice(("none", "align", "all")) if kind == "states" else "none",
        "speculative_config": NGRAM if rng.random() < 0.4 else None,
        "scheduling_policy": rng.choice(("auto", "fair", "priority")),
    }


def small_memory(config: EngineConfig, spare: int) -> EngineConfig:
    """Give the caches room for one request of full length and some blocks."""
    setup = prepare(config)
    worker = setup.torch_worker()
    layout = worker.layout(worker.build()[0])
    step = setup.config.max_num_batched_tokens
    states = state_blocks(setup.config, layout, setup.config.max_num_seqs)
    needs = zip(request_blocks(layout, MAX_LEN, step), states, layout.pools, strict=True)
    size = sum(max(need + spare, first) * pool.block_bytes for need, first, pool in needs)
    return replace(config, kv_cache_memory_bytes=size)


def run(llm: LLM, wishes: list[Wish], rng: random.Random) -> bool:
    """Play a load, step by step; return whether anybody was preempted."""
    engine, step = llm.engine, 0
    waiting = sorted(enumerate(wishes), key=lambda pair: -pair[1].arrives)
    while waiting or engine.has_work():
        while waiting and waiting[-1][1].arrives <= step:
            number, wish = waiting.pop()
            prompt = TokensPrompt(wish.prompt)
            engine.add(str(number), prompt, wish.params, priority=rng.randint(0, 2))
        for update in engine.step():
            wish = wishes[int(update.request_id)]
            output = update.output()
            wish.found, wish.reused = output.outputs[0], output.num_cached_tokens > 0
            if wish.leaves is not None and len(wish.found.token_ids) >= wish.leaves:
                engine.abort(update.request_id)
        step += 1
        if rng.random() < 0.02:
            llm.reset_prefix_cache()
    stats = llm.stats()
    assert stats.num_running == stats.num_waiting == 0
    return stats.num_preemptions > 0


def differs(ours: CompletionOutput, quiet: CompletionOutput, greedy: bool) -> str:
    """Say where an answer first differs, unless two tokens were nearly as likely there."""
    for place, (mine, right) in enumerate(zip(ours.token_ids, quiet.token_ids, strict=False)):
        if mine != right:
            assert quiet.logprobs is not None
            first, second = sorted(quiet.logprobs[place].logprobs, reverse=True)[:2]
            near = greedy and first - second < TIE
            return "" if near else f"token {place}: {mine} in place of {right}"
    return ""


@pytest.fixture(scope="module")
def make_config(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., EngineConfig]:
    def make(kind: str, **options: Any) -> EngineConfig:
        name, values = MODELS[kind]
        path = tmp_path_factory.mktemp(kind)
        config = getattr(transformers, f"{name}Config")(**{**SIZES, **values})
        raw = config.to_dict() | {"architectures": [f"{name.removesuffix('Text')}ForCausalLM"]}
        (path / "config.json").write_text(json.dumps(raw))
        common = {"platform": "cpu", "dtype": "float32", "load_format": "dummy", "seed": 5}
        bounds = {"max_model_len": MAX_LEN, "block_size": BLOCK, "skip_tokenizer_init": True}
        return EngineConfig(str(path), **{**common, **bounds, **options})

    return make


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_a_busy_engine_answers_as_a_quiet_one(
    make_config: Callable[..., EngineConfig], kind: str
) -> None:
    preempted = reused = left = False
    with LLM(config=make_config(kind, enable_prefix_caching=False)) as quiet:
        for _ in range(ROUNDS):
            seed = random.randrange(2**32)
            rng = random.Random(seed)
            options, wishes = settings(kind, rng), load(rng)
            config = small_memory(make_config(kind, **options), rng.choice((1, 3, 30)))
            with LLM(config=config) as busy:
                preempted |= run(busy, wishes, rng)
            for wish in wishes:
                [right] = quiet.generate(TokensPrompt(wish.prompt), wish.params)
                ours, told = wish.found, f"{kind}, seed {seed}, {options}, prompt {wish.prompt}"
                assert ours is not None and ours.error is None, told
                reused, left = reused or wish.reused, left or wish.leaves is not None
                if wish.leaves is None:
                    assert len(ours.token_ids) == wish.params.max_tokens, told
                greedy = wish.params.temperature == 0
                found = differs(ours, right.outputs[0], greedy)
                assert not found, f"{found}; {told}"
    assert preempted and reused and left
