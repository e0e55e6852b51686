"""Recorded decode steps: the same to the last bit, or refused by name."""

import ctypes
import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import SelectionError
from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    GatedActivationSpec,
    GraphSpec,
    LinearSpec,
    ShortConvSpec,
    ShortConvWeights,
)
from hotshoe_cpu.activation import GatedActivation
from hotshoe_cpu.graph import RECORDED, RECORDED_AT, Graph, supports
from hotshoe_cpu.linear import Linear
from hotshoe_cpu.short_conv import ShortConv

SIZE = 32


def test_verdicts(facts: DeviceFacts) -> None:
    own = tuple(sorted(RECORDED))
    assert supports(GraphSpec(8, operations=own), facts).score == 100
    foreign = supports(GraphSpec(8, operations=(*own, "gated_mlp=theirs")), facts)
    assert not foreign.accepted and foreign.reason.endswith("not of gated_mlp=theirs")
    assert "prompts" in supports(GraphSpec(8, pieces=True), facts).reason


@torch.inference_mode()
def test_states_move_on_once_a_step(facts: DeviceFacts) -> None:
    """A recording is tried before it counts, and a step that cannot be recorded counts as well."""
    spec = ShortConvSpec(SIZE, 3, "float32", "float32", 4, "none")
    op, graph = ShortConv(spec, facts), Graph(GraphSpec(8), facts)
    weights = ShortConvWeights(torch.randn(SIZE, 3), torch.randn(SIZE))
    x, length = torch.randn(1, 3 * SIZE), torch.zeros(1, dtype=torch.int32)
    step = AttentionMetadata(
        1, torch.tensor([0, 1]).int(), length, torch.zeros(1, 1).int(), torch.zeros(1).int(), 1, 9
    )
    caches = [(torch.zeros(1, 2, SIZE),) for _ in range(3)]
    plain = partial(op, x, caches[0], step, weights)
    replay = graph.record(partial(op, x, caches[1], step, weights))
    hindered = graph.record(lambda: op(x, caches[2], step, weights).erf())
    for turn in range(2 * RECORDED_AT):
        x.normal_()
        length.add_(1)
        wanted = plain()
        assert torch.equal(replay(), wanted) and torch.equal(hindered(), wanted.erf()), turn
        assert all(torch.equal(cache, caches[0][0]) for (cache,) in caches)


class Step:
    """Two products and an activation over rows of one input, the second from a table of them."""

    def __init__(self, facts: DeviceFacts, rows: int) -> None:
        self.x, self.table = torch.randn(rows, SIZE), torch.randn(9, SIZE)
        self.index = torch.zeros(rows, dtype=torch.int64)
        self.first = Linear(LinearSpec(SIZE, 2 * SIZE, "float32"), facts)
        self.second = Linear(LinearSpec(SIZE, SIZE, "float32"), facts)
        self.first.load({"weight": [torch.randn(2 * SIZE, SIZE)]})
        self.second.load({"weight": [torch.randn(SIZE, SIZE)]})
        self.act = GatedActivation(GatedActivationSpec(SIZE, "silu", "float32"), facts)
        self.calls = 0

    def change(self) -> None:
        self.x.normal_()
        self.index.random_(0, len(self.table))

    def __call__(self, beside: Callable[[Tensor], Tensor] = lambda y: y) -> Tensor:
        self.calls += 1
        y = self.second(self.act(self.first(self.x)))
        y = beside(y)
        y = self.first(self.table.index_select(0, self.index))[:, :SIZE] if len(y) == 3 else y
        if len(y) == 8:
            y = torch.cat([y[:, 1:], y[:, :1].contiguous()], dim=1)
            y = torch.nn.functional.gelu(y) + y.new_empty(y.shape).copy_(y)
            values, places = y.sigmoid().topk(SIZE)
            y = y * 2 + values.gather(1, places) @ self.table[:1].T.long().float()
        return self.second(y).mul_(0.5).div_(0.25)


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_a_replay_equals_its_step(facts: DeviceFacts, rows: int) -> None:
    graph, step = Graph(GraphSpec(8), facts), Step(facts, rows)
    replay, other = graph.record(step), graph.record(lambda: step(lambda y: y[:1]))
    for turn in range(2 * RECORDED_AT):
        step.change()
        if turn % 2:
            other()  # works in the same memory
        found = replay().clone()
        made = step.calls
        assert torch.equal(found, step()), turn
        if turn >= RECORDED_AT:
            assert found.data_ptr() != replay().data_ptr() == replay().data_ptr()
            assert step.calls == made + 1, "the list runs without the function"


def much(y: Tensor) -> Tensor:
    torch.empty(1 << 27, dtype=torch.float32)
    return y


def negate(y: Tensor) -> Tensor:
    """Change a result behind everybody's back."""
    memory = (ctypes.c_float * y.numel()).from_address(y.data_ptr())
    found = np.frombuffer(memory, np.float32)
    np.negative(found, out=found)
    return y


@torch.inference_mode()
@pytest.mark.parametrize(
    ("beside", "cause"),
    [
        (torch.inverse, "inverse of PyTorch"),
        (lambda y: y + 0 * torch.rand(1), "rand of PyTorch"),
        (lambda y: y[y[:, 0] == y[:, 0]], "__getitem__ of PyTorch"),
        (lambda y: y.mul(torch.nn.functional.relu(y, inplace=True)), "relu of PyTorch in place"),
        (lambda y: y.mul_(float(y.tolist()[0][0])), "tolist of PyTorch"),
        (lambda y: y.mul_(y[0, 0].item()), "item of PyTorch"),
        (lambda y: y.view(-1)[: y.shape[0] * SIZE].view(y.shape).neg_(), "neg_ of PyTorch"),
        (lambda y: torch.from_numpy(y.numpy() * 2), "numpy of PyTorch"),
        (much, "no room in 256 MiB"),
        (negate, "computes that is no operation"),
    ],
)
def test_what_cannot_be_recorded_is_named_and_runs_as_it_is(
    facts: DeviceFacts,
    beside: Callable[[Tensor], Tensor],
    cause: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    graph, step = Graph(GraphSpec(8), facts), Step(facts, SIZE)
    replay = graph.record(lambda: step(beside))
    for turn in range(RECORDED_AT + 2):
        step.change()
        assert torch.equal(replay(), step(beside)), turn
        assert (cause in caplog.text) == (turn + 1 >= RECORDED_AT)
    assert len(caplog.records) == 1


@torch.inference_mode()
def test_a_step_that_fails_leaves_nothing_half_recorded(facts: DeviceFacts) -> None:
    graph, step = Graph(GraphSpec(8), facts), Step(facts, 2)
    fails = [False]

    def beside(y: Tensor) -> Tensor:
        if fails[0]:
            raise ValueError("broken")
        return y

    replay = graph.record(lambda: step(beside))
    for turn in range(1, RECORDED_AT + 3):
        fails[0] = turn == RECORDED_AT
        step.change()
        if fails[0]:
            with pytest.raises(ValueError, match="broken"):
                replay()
        else:
            assert torch.equal(replay(), step(beside))
    again = graph.record(step)
    for _ in range(RECORDED_AT + 2):
        step.change()
        assert torch.equal(again(), step())


CONFIG = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
WINDOW = {"sliding_window": 9}
GEMMA = {
    **WINDOW,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 3.0,
    "query_pre_attn_scalar": 16,
    "hidden_activation": "gelu_pytorch_tanh",
}
GRANITE = {
    "embedding_multiplier": 2.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
}
DELTA = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 16,
}
SPACE = {
    "layer_types": ["mamba", "attention", "mamba"],
    "mamba_d_head": 32,
    "mamba_d_state": 12,
    "mamba_n_groups": 2,
    "mamba_n_heads": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 48,
}
SCAN = {"state_size": 8, "conv_kernel": 4, "expand": 2, "time_step_rank": 4}
LATENT = {
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 48,
    "num_key_value_heads": 4,
}
CHUNKS = {
    "attention_chunk_size": 32,
    "intermediate_size_mlp": 96,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "no_rope_layers": [1, 0, 1],
    "attn_temperature_tuning": True,
    "floor_scale": 8,
}
N_GRAMS = {
    **DELTA,
    "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "hc_count": 2,
    "hc_lowrank": 12,
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 8,
    "ple_layer_ids": [1, 3],
    "ple_embed_dim": 48,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 50,
    "split_ngram_parts": 2,
    "eos_token_id": 7,
}
ALL_STATES = {"state_cache_mode": "all"}
MODELS = {
    "qwen3": ("Qwen3ForCausalLM", {}, {}),
    "mistral": ("MistralForCausalLM", WINDOW, {}),
    "gemma2": ("Gemma2ForCausalLM", GEMMA, {}),
    "granite": ("GraniteForCausalLM", GRANITE, {"dtype": "float32"}),
    "qwen3-int8": ("Qwen3ForCausalLM", {}, {"quantization": "int8"}),
    "qwen3.5": ("Qwen3_5ForCausalLM", DELTA, ALL_STATES),
    "granite-hybrid": ("GraniteMoeHybridForCausalLM", SPACE, {"state_cache_mode": "none"}),
    "mamba": ("MambaForCausalLM", SCAN, ALL_STATES),
    "deepseek-v3": ("DeepseekV3ForCausalLM", LATENT, {}),
    "llama4": ("Llama4ForCausalLM", CHUNKS, {}),
    "qwen4": ("Qwen4ExpForCausalLM", N_GRAMS, {"block_size": 8}),
}


DUMMY = {"platform": "cpu", "load_format": "dummy", "skip_tokenizer_init": True, "seed": 3}


def tiny(folder: Path, name: str) -> str:
    """Write a model's configuration."""
    architecture, values, _ = MODELS[name]
    config = {"architectures": [architecture], "hidden_act": "silu", **CONFIG, **values}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def answers(
    model: str, prompts: list[TokensPrompt], params: list[SamplingParams], **options: object
) -> list[object]:
    """Return tokens and log probabilities of requests of which at most five run at once."""
    llm = LLM(model, max_num_seqs=5, max_model_len=96, **DUMMY, **options)
    try:
        outputs = llm.generate(prompts, params)
    finally:
        llm.close()
    assert all(output.outputs[0].error is None for output in outputs)
    return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs]


@pytest.mark.parametrize("name", MODELS)
def test_engines_answer_alike_with_recordings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is poisoned before every replay, and steps are recorded at once."""
    model, options = tiny(tmp_path, name), MODELS[name][2]
    rng = random.Random(name)
    begins = [rng.randrange(3, 250) for _ in range(32)]  # a block, which the cache finds
    prompts = [
        TokensPrompt(before + [rng.randrange(3, 250) for _ in range(rng.choice((1, 7)))])
        for before in rng.choices(([], begins), k=12)
    ]
    params = [
        SamplingParams(
            temperature=number % 2,
            seed=number,
            max_tokens=rng.randrange(2, 40),
            logprobs=2,
            ignore_eos=True,
        )
        for number in range(len(prompts))
    ]
    wanted = answers(model, prompts, params, enforce_eager=True, **options)

    replayed: list[int] = []
    plain = Graph._recorded

    def poisoned(graph: Graph, function: Callable[[], Tensor]):
        output, replay = plain(graph, function)
        assert replay is not None

        def again() -> Tensor:
            graph._arena.peak = max(graph._arena.peak, 1 << 16)
            graph._arena.poison()
            replayed.append(len(output))
            return replay()

        return output, again

    monkeypatch.setattr(Graph, "_recorded", poisoned)
    monkeypatch.setattr("hotshoe_cpu.graph.RECORDED_AT", 1)
    assert answers(model, prompts, params, **options) == wanted
    assert 5 in replayed and len(set(replayed)) > 1


def told(model: str, **options: object) -> tuple[str, set[str]]:
    """Return what start-up says of recordings, and who was chosen for them."""
    llm = LLM(model, max_num_seqs=4, max_model_len=64, **DUMMY, **options)
    try:
        info = llm.engine.core.info
        chosen = {d.chosen for d in info.decisions if d.slot == "graph"}
        return str(info.report.get("graphs", "")), chosen
    finally:
        llm.close()


def test_start_up_says_what_is_recorded(tmp_path: Path) -> None:
    model = tiny(tmp_path, "qwen3")
    said, chosen = told(model)
    assert said.startswith("of decode steps alone (native: steps that compute prompts")
    assert chosen == {"native"}
    for nothing in ({"enforce_eager": True}, {"optimization_level": 0}):
        assert told(model, **nothing) == ("", set())
    said, chosen = told(model, optimization_level=1)
    assert (said, chosen) == ("of decode steps alone (optimization_level 1)", {"native"})


def test_other_candidates_are_refused_by_name(tmp_path: Path) -> None:
    model = tiny(tmp_path, "qwen3")
    said, chosen = told(model, kernel={"rms_norm": "reference"})
    assert said.startswith("none recorded (native: only calls of this platform's kernels")
    assert "not of rms_norm=reference" in said and not chosen
    with pytest.raises(SelectionError, match=r"graph=native cannot serve .*rms_norm=reference"):
        told(model, kernel={"rms_norm": "reference", "graph": "native"})
