"""Every family divided among ranks, which are threads here, computes what it computes alone."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.plugins.models.conftest import VARIANTS, Variant

from hotshoe import LLM, EngineConfig, SamplingParams, TokensPrompt
from hotshoe.engine.explain.explanation import explain
from hotshoe.errors import ConfigError
from hotshoe.layers import BuildContext
from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    SLOTS,
    CommunicatorSpec,
    GatedDeltaSpec,
    Rendezvous,
    Selector,
    ShortConvSpec,
)
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import DecoderSpec, LayerSpec

CPU = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)
#: Logits may differ by so much of the largest one, so that nearer tokens may change places.
TIE = 1e-4
SPEC = DecoderSpec(
    vocab_size=37,
    hidden_size=12,
    intermediate_size=24,
    num_heads=6,
    num_kv_heads=3,
    head_dim=4,
    layers=(LayerSpec(None),) * 2,
    activation="silu",
    norm_eps=1e-6,
    attention_scale=0.5,
    tied=False,
)
BIASED = replace(SPEC, qkv_bias=True, o_bias=True, mlp_bias=True)


class Group:
    """Ranks as threads, over the reference communicator."""

    def __init__(self, size: int, directory: Path) -> None:
        self.size = size
        self._pool = ThreadPoolExecutor(size)
        selector = Selector(SLOTS, [], CPU)
        choose = selector.choose
        self.members = [choose("communicator", CommunicatorSpec(size)) for _ in range(size)]
        self.run(
            lambda rank: self.members[rank].open(Rendezvous(str(directory), rank, size, 120.0))
        )

    def run(self, work) -> list:
        return [f.result() for f in [self._pool.submit(work, rank) for rank in range(self.size)]]

    def parallel(self, rank: int) -> dict:
        """What a rank's build context has besides."""
        return {"rank": rank, "size": self.size, "communicator": self.members[rank]}

    def close(self) -> None:
        self.run(lambda rank: self.members[rank].close())
        self._pool.shutdown()


@pytest.fixture(scope="module")
def groups(tmp_path_factory) -> Iterator[list[Group]]:
    made = [Group(size, tmp_path_factory.mktemp("ranks")) for size in (2, 4)]
    yield made
    for group in made:
        group.close()


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_every_family(shared_variant, turn, checkpoints, stepper_class, groups) -> None:
    """Variants are divided among two and among four by turns, and by both in the slow tests."""
    group = groups[(VARIANTS.index(shared_variant) + turn) % len(groups)]
    check(checkpoints.get(shared_variant), shared_variant, stepper_class, group)


@pytest.mark.parametrize("family", ["Llama", "Olmoe", "Olmo2", "GPTNeoX"])
def test_plans_of_transformers(family, checkpoints, stepper_class, tmp_path) -> None:
    """Divided matrices, experts, whole attention, and none of our own descriptions."""
    values = {"num_experts": 6, "num_experts_per_tok": 2} if family == "Olmoe" else {"head_dim": 16}
    variant = Variant(f"planned-{family}", family, values, impl="transformers")
    group = Group(2, tmp_path)
    check(checkpoints.get(variant), variant, stepper_class, group)
    group.close()


def check(checkpoint, variant, stepper_class, group) -> None:
    def stepper(**parallel):
        parallel["impl"] = variant.impl
        return stepper_class(checkpoint.path, variant.max_model_len, **parallel)

    alone = stepper()
    steppers = group.run(lambda rank: stepper(**group.parallel(rank)))
    steps = [{0: draw(5), 1: draw(3)}, {1: draw(1), 0: draw(1)}, {0: draw(2), 2: draw(6)}]
    texts: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for step in steps:
        expected = alone.step(step)
        found = group.run(lambda rank, step=step: steppers[rank].step(step))
        for sequence, logits in expected.items():
            for part in found:
                assert torch.equal(part[sequence], found[0][sequence])
            text = texts[sequence] = [*texts[sequence], *step[sequence]]
            error = (found[0][sequence] - logits).abs().max() / logits.abs().max()
            assert not error.isnan()
            if error > TIE and checkpoint.unstable(text) == len(text):
                assert error <= 2 * checkpoint.rounding(text)[-1]  # both may be off


def draw(count: int) -> list[int]:
    return [random.randrange(256) for _ in range(count)]


def context(**parallel) -> BuildContext:
    return BuildContext(Selector(SLOTS, [], CPU), "float32", "float32", 4, 32, **parallel)


def shape_bytes(ctx: BuildContext) -> int:
    return sum(nbytes() for nbytes in ctx.weight_bytes)


@pytest.mark.parametrize("size", [2, 3, 6])
@pytest.mark.parametrize("tied", [False, True])
def test_biases_odd_vocabularies_and_more_ranks_than_kv_heads(tmp_path, size, tied) -> None:
    """37 tokens, 6 heads over 3 (shared by 2 ranks each when there are 6), biases added once."""
    if size == 2:
        spec = replace(BIASED, num_kv_heads=1, tied=tied)
    else:
        spec = replace(BIASED, tied=tied)
    group = Group(size, tmp_path)
    alone = context()
    model = DenseDecoder(spec, alone)
    weights = {n: torch.randn(w.shape) for n, w in alone.weights.expected.items()}
    feed(alone, weights)
    hidden = torch.randn(5, spec.hidden_size)
    qkv = model.layers[0].mixer._qkv(hidden)
    expected = (
        model.head(hidden, "generate"),
        mlp(model, hidden),
        model.layers[0].mixer._o(qkv[:, :24]),
    )

    def work(rank):
        ctx = context(**group.parallel(rank))
        model = DenseDecoder(spec, ctx)
        feed(ctx, weights)
        first = model.layers[0]
        share = 24 // size
        attended = qkv[:, :24][:, share * rank : share * (rank + 1)].contiguous()
        return (
            model.head(hidden, "generate"),
            mlp(model, hidden),
            first.mixer._o(attended),
        ), shape_bytes(ctx)

    found = group.run(work)
    for results, nbytes in found:
        for ours, theirs in zip(results, expected, strict=True):
            # Sums that cancel keep the rounding of their terms, which are about as large as others.
            limit = 1e-5 * float(theirs.abs().max())
            torch.testing.assert_close(ours, theirs, rtol=0, atol=limit)
        assert nbytes < shape_bytes(alone) * (1 / size + 0.2)
    group.close()


def mlp(model: DenseDecoder, hidden: torch.Tensor) -> torch.Tensor:
    layer = model.layers[0]
    return layer.mlp(hidden)


def feed(ctx: BuildContext, weights: dict[str, torch.Tensor]) -> None:
    for name in ctx.weights.expected:
        ctx.weights.feed(name, weights[name])
    ctx.weights.check_complete()


@pytest.mark.parametrize(
    ("size", "changes", "message"),
    [
        (4, {}, r"tensor_parallel_size 4 does not divide the model's 6 attention heads; use"),
        (2, {}, r"does not divide the model's 3 attention heads; use 1, 3 or 6"),
        (3, {"intermediate_size": 25}, r"model's 25 channels between MLP matrices; use 1, 5 or 25"),
    ],
)
def test_what_cannot_be_divided_is_refused(size, changes, message) -> None:
    with pytest.raises(ConfigError, match=message):
        DenseDecoder(replace(SPEC, **changes), context(rank=1, size=size))


def test_dummy_weights_are_divided_alike(tmp_path) -> None:
    """Each rank holds its share of the very weights that one would hold alone."""
    from hotshoe.loader import load_weights

    group = Group(3, tmp_path)
    alone = context()
    model = DenseDecoder(SPEC, alone)
    load_weights(alone.weights, tmp_path, "dummy", torch.float32, 5)

    def work(rank):
        ctx = context(**group.parallel(rank))
        model = DenseDecoder(SPEC, ctx)
        load_weights(ctx.weights, tmp_path, "dummy", torch.float32, 5)
        return mlp(model, torch.ones(2, 12))

    for found in group.run(work):
        torch.testing.assert_close(found, mlp(model, torch.ones(2, 12)))
    group.close()


def row_elements(decision) -> int:
    """Return what a layer with a cache keeps of a token; 0 of any other operation."""
    if decision.slot in ("mla_attention", "indexer", "block_indexer"):
        return decision.spec.row.channels
    if decision.slot == "relative_attention":
        own = decision.spec.attention
        return 2 * own.num_kv_heads * own.head_dim
    if decision.slot == "sparse_mla_attention":
        return decision.spec.attention.row.channels
    if decision.slot == "attention":
        return 2 * decision.spec.num_kv_heads * decision.spec.head_dim
    return 0


@pytest.mark.slow  # starts two processes for each family
def test_two_processes_write_the_tokens_of_transformers(divided_variant, checkpoints) -> None:
    """Chunks, prefix hits and preemption: the cache holds one request and a little more."""
    variant = divided_variant
    count = 24 if variant.max_model_len >= 64 else 12
    checkpoint = checkpoints.get(variant)
    options = {
        "platform": "cpu",
        "dtype": "float32",
        "block_size": 8,
        "max_model_len": variant.max_model_len,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 5,
        "skip_tokenizer_init": True,
        "tensor_parallel_size": 2,
    }
    plan = explain(EngineConfig(str(checkpoint.path), **options))
    blocks = -(-variant.max_model_len // 8) + 1
    size = blocks * sum(
        uses * 8 * row_elements(decision) * 4
        for decision, uses in zip(plan.decisions, plan.uses, strict=True)
    )
    size = 1 << 18 if variant.keeps_entries else size  # several caches for each layer
    states = [
        (decision.spec, count)
        for decision, count in zip(plan.decisions, plan.uses, strict=True)
        if decision.slot in ("state_space", "selective_scan", "rg_lru", "short_conv", "gated_delta")
    ]
    size += sum(count * options["max_num_seqs"] * state_bytes(spec) for spec, count in states)
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    with LLM(str(checkpoint.path), kv_cache_memory_bytes=size, **options) as llm:
        shared = draw(16)
        for prompts in ([shared], [draw(14), [*shared, 5], draw(13), [*shared, 7, 8], draw(12)]):
            results = llm.generate([TokensPrompt(prompt) for prompt in prompts], params)
            for prompt, result in zip(prompts, results, strict=True):
                assert len(result.outputs[0].token_ids) == count
                checkpoint.assert_greedy(prompt, result.outputs[0].token_ids)
        stats = llm.engine.core.stats()
        if states:  # none of which is kept for others, so room is for every row
            return
        # Blocks of several sizes lie in several pools, and that of windows keeps few of them.
        sizes = {row_elements(decision) for decision in plan.decisions} - {0}
        assert stats.num_hit_tokens > 0 or len(sizes) > 1
        # Where texts are short, so few requests run at once that all of them have room; and layers
        # with windows stop growing before there is a shortage.
        windows = any(use.window for use in plan.caches)
        assert stats.num_preemptions > 0 or variant.max_model_len < 64 or windows


def state_bytes(spec) -> int:
    """Return the bytes of one layer's state of one sequence, all in float32."""
    if isinstance(spec, ShortConvSpec):
        return 4 * (spec.conv_width - 1) * spec.conv_size
    entries = spec.key_dim if isinstance(spec, GatedDeltaSpec) else getattr(spec, "state_size", 1)
    return 4 * ((spec.conv_width - 1) * spec.conv_size + spec.inner_size * entries)
