"""The whole engine on a GPU: graphs, overlap without waiting, batch invariance, perplexity.

Each test leaves the process as it found it: engines closed, memory given back, no mode left on.
"""

from __future__ import annotations

import gc
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.e2e import eagle
from tests.platforms.cuda.perplexity import perplexity
from tests.plugins.quantization import test_checkpoints, test_experts
from tests.plugins.quantization.writers import write

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.runner.graphs import Recordings
from hotshoe.speculation.drafting import Drafting
from hotshoe.speculation.proposer import Drafter, Wanted
from hotshoe_conformance.checkpoint import write_model
from hotshoe_conformance.host import host_plugins
from hotshoe_triton.graph import Graph

#: Of the CPU platform, by `python -m tests.platforms.cuda.perplexity cpu`.
CPU_PERPLEXITY = {"bfloat16": 10.78987, "float32": 10.79029}
#: The same with `--quantization`, in bfloat16.
CPU_QUANTIZED = {"fp8": 10.829, "fp8_mixed": 10.822, "fp8_block": 10.818, "mxfp4": 11.462}
CPU_QUANTIZED |= {"int4": 11.005, "int4_mixed": 10.958}
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=1)
MakeLLM = Callable[..., LLM]


def let_waiting(mode: str) -> None:
    """Say what happens where the host waits for the device: "error" or "default".

    PyTorch warns of the mode itself. As an error, that warning is raised once the mode is set, past
    whatever would set it back, and every later test fails by it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)


@pytest.fixture(autouse=True)
def clean(gpu: str) -> Iterator[None]:
    """Undo what a test, or the one that failed before it, may have left behind."""
    # What is kept of the last failure holds its engine.
    sys.last_exc = sys.last_value = sys.last_traceback = None
    yield
    let_waiting("default")
    gc.collect()
    torch.cuda.synchronize()  # a kernel that failed is this test's, not the next one's
    torch.cuda.empty_cache()


@pytest.fixture
def make(clean: None) -> Iterator[MakeLLM]:
    made: list[LLM] = []

    def make(**options: object) -> LLM:
        made.append(LLM(**{"model": "demo", "platform": "cuda", "max_model_len": 512, **options}))
        return made[-1]

    yield make
    let_waiting("default")
    for llm in made:
        llm.close()


def prompts(count: int, seed: int = 0) -> list[TokensPrompt]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 90, (count,), generator=generator).tolist()
    return [
        TokensPrompt(torch.randint(10, 8000, (n,), generator=generator).tolist()) for n in lengths
    ]


def tokens(llm: LLM, batch: list[TokensPrompt], params: SamplingParams = GREEDY) -> list[list[int]]:
    return [r.outputs[0].token_ids for r in llm.generate(batch, params)]


def test_no_slot_runs_on_its_reference(make: MakeLLM) -> None:
    llm = make(require_native=True)
    assert all(decision.native for decision in llm.decisions)
    assert {"graph", "transfer", "attention"} <= {decision.slot for decision in llm.decisions}


def test_replayed_steps_equal_eager_ones(make: MakeLLM) -> None:
    """Padded to a recorded size or not, the same kernels give the same tokens."""
    batch = prompts(37)
    replayed = make(batch_invariant=True).generate(batch, GREEDY)
    eager = make(batch_invariant=True, enforce_eager=True).generate(batch, GREEDY)
    for a, b in zip(replayed, eager, strict=True):
        assert a.outputs[0].token_ids == b.outputs[0].token_ids
        assert a.outputs[0].logprobs == b.outputs[0].logprobs


def test_engines_beside_and_after_each_other_change_nothing(make: MakeLLM) -> None:
    """Recordings of one go on while others are made, and when others are gone."""
    batch = prompts(5)
    first = make()
    expected = tokens(first, batch)
    second = make()
    assert tokens(second, batch) == tokens(first, batch) == expected
    first.close()
    assert tokens(second, batch) == expected
    third = make()
    second.close()
    assert tokens(third, batch) == expected


def test_a_batch_of_one_equals_a_batch_of_64(make: MakeLLM) -> None:
    llm = make(batch_invariant=True, enable_prefix_caching=False)
    batch = prompts(64)
    together = llm.generate(batch, GREEDY)
    for prompt, expected in zip(batch[::7], together[::7], strict=True):
        (alone,) = llm.generate([prompt], GREEDY)
        assert alone.outputs[0].token_ids == expected.outputs[0].token_ids
        # Reported values are normalized by PyTorch, whose sums of a row depend on the number of
        # rows: by a few units in the last place of a normalizer around 10, whatever the value. A
        # bit of bfloat16 anywhere in the model would show a thousand times larger.
        for a, b in zip(alone.outputs[0].logprobs, expected.outputs[0].logprobs, strict=True):
            assert a.token_ids == b.token_ids
            assert a.logprobs == pytest.approx(b.logprobs, rel=0, abs=1e-5)


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_no_step_waits_for_the_device(make: MakeLLM, enforce_eager: bool) -> None:
    llm = make(enforce_eager=enforce_eager)
    kinds = [
        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
        SamplingParams(temperature=0.8, top_k=40, top_p=0.9, max_tokens=20, seed=3),
        SamplingParams(temperature=1.0, min_p=0.05, logprobs=4, max_tokens=20),
        SamplingParams(
            temperature=0.7,
            repetition_penalty=1.2,
            presence_penalty=0.3,
            frequency_penalty=0.2,
            logit_bias={5: 3.0},
            min_tokens=8,
            max_tokens=20,
        ),
    ]
    batch = prompts(24)
    params = [kinds[i % len(kinds)] for i in range(len(batch))]
    llm.generate(batch[:4], params[:4])  # kernels compile, libraries take their workspaces
    let_waiting("error")
    try:
        results = llm.generate(batch, params)
    finally:
        let_waiting("default")
    assert all(r.outputs[0].error is None for r in results)


class Collecting:
    """Keeps a head's drafts to itself, so that all steps are the same."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.made: list[tuple[tuple[int, ...], list[int]]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._drafter, name)

    def propose(self, wanted: Sequence[Wanted]) -> list[list[int]]:
        made = self._drafter.propose(wanted)
        texts = (tuple(one.request.token_ids) for one in wanted)
        self.made += [pair for pair in zip(texts, made, strict=True) if pair[1]]
        return [[] for _ in wanted]


@pytest.fixture
def drafting(make: MakeLLM, tmp_path: Path) -> tuple[LLM, Collecting]:
    """A model with a head of EAGLE-3's shape, and what collects its drafts."""
    weights = eagle.model_weights("llama", 3)
    model = eagle.write_model(tmp_path / "model", "llama", weights)
    values = eagle.HEAD_CONFIGS["eagle3"]
    head = eagle.write(tmp_path / "head", eagle.head_weights("eagle3", weights, 4), **values)
    drafts = {
        "method": "eagle3",
        "model": str(head),
        "num_speculative_tokens": 3,
        "adaptive": False,
    }
    sizes = {"max_model_len": 256, "max_num_seqs": 8, "dtype": "float32"}
    llm = make(model=str(model), skip_tokenizer_init=True, speculative_config=drafts, **sizes)
    core = llm.engine.core
    collecting = core._drafting._drafter = Collecting(core._drafting._drafter)
    return llm, collecting


def test_recorded_chains_are_those_that_are_called(drafting: tuple[LLM, Collecting]) -> None:
    """Also behind a warm-up that follows the recordings."""
    llm, collecting = drafting
    ahead = llm.engine.core.workers.main.execute.runner._ahead
    found = []
    prompts = [TokensPrompt([n, 3, 7 * n]) for n in range(1, 6)]
    for steps in (ahead._steps, [Recordings(())] * len(ahead._steps)):
        assert steps[0].offered or found
        ahead._steps = steps
        collecting.made.clear()
        llm.generate(prompts, GREEDY)
        found.append(collecting.made[:])
    same = sum(a == b for a, b in zip(*found, strict=True))
    assert same >= 0.95 * len(found[0]) > 50  # nearly equal logits may change places
    assert {len(drafts) for _, drafts in found[0]} == {3}


def test_drafts_behind_steps_without_any_are_as_good(
    drafting: tuple[LLM, Collecting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten steps the first nine want none; what they left is written when the tenth does."""
    llm, collecting = drafting
    prompts = [TokensPrompt([n, 3, 7 * n]) for n in range(1, 6)]
    params = [replace(GREEDY, max_tokens=20 * n) for n in range(1, 6)]
    llm.generate(prompts, params)
    always = dict(collecting.made)
    collecting.made.clear()
    asked = iter(range(1000))
    monkeypatch.setattr(Drafting, "num_ahead", property(lambda _: 3 * (next(asked) % 10 == 9)))
    llm.generate(prompts, params)
    assert 10 < len(collecting.made) < 0.2 * len(always)
    same = sum(always.get(text) == drafts for text, drafts in collecting.made)
    assert same >= 0.9 * len(collecting.made)


@pytest.mark.parametrize("dtype", CPU_PERPLEXITY)
def test_perplexity_is_that_of_the_cpu(dtype: str) -> None:
    assert perplexity("cuda", dtype=dtype) == pytest.approx(CPU_PERPLEXITY[dtype], rel=1e-3)


@pytest.mark.parametrize("method", CPU_QUANTIZED)
def test_quantized_perplexity_is_that_of_the_cpu(method: str) -> None:
    found = perplexity("cuda", quantization=method)
    assert found == pytest.approx(CPU_QUANTIZED[method], rel=3e-3)


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-4), ("bfloat16", 0.3)])
@pytest.mark.parametrize("experts", [False, True])
def test_tokens_of_nvfp4(
    make: MakeLLM, tmp_path: Path, experts: bool, dtype: str, limit: float
) -> None:
    """Weights of four bits, and the plain ones that they stand for, which bfloat16 rounds."""
    if experts:
        sizes = {"num_experts": 6, "moe_intermediate_size": 32, "norm_topk_prob": True}
        source = test_experts.save(tmp_path / "source", "Qwen3Moe", **sizes)
        written = test_experts.EXACT["nvfp4"]
    else:
        source = write_model("llama", tmp_path / "source", host_plugins(), 3)
        written = test_checkpoints.EXACT["modelopt-nvfp4"]
    stored, plain = write(source, tmp_path, written)
    options = {"skip_tokenizer_init": True, "max_model_len": 64, "dtype": dtype}
    ours, theirs = make(model=str(stored), **options), make(model=str(plain), **options)
    held = {d.slot: d.chosen for d in ours.decisions if "fp4_e2m1" in str(d.spec)}
    assert held["linear"] in ("groups", "packed")
    assert held.get("moe", "triton") == "triton"
    assert test_checkpoints.difference(ours, theirs) < limit


def test_memory_is_given_back(make: MakeLLM) -> None:
    once = make(kv_cache_memory_bytes=64 << 20)
    tokens(once, prompts(4))
    once.close()  # libraries have taken the workspaces that they keep
    before = torch.cuda.memory_allocated()
    llm = make(kv_cache_memory_bytes=256 << 20)
    tokens(llm, prompts(4))
    assert torch.cuda.memory_allocated() - before > 256 << 20
    llm.close()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() - before < 32 << 20


def test_sleep_gives_memory_to_other_programs(make: MakeLLM) -> None:
    llm = make(kv_cache_memory_bytes=256 << 20)
    expected = tokens(llm, prompts(4))
    for level in (2, 1, 1, 1):
        awake = torch.cuda.mem_get_info()[0]
        llm.sleep(level)
        freed = torch.cuda.mem_get_info()[0] - awake
        assert freed > 0.95 * sum(llm.memory.values())
        llm.wake_up()
        assert tokens(llm, prompts(4)) == expected


def test_from_the_second_sleep_on_nothing_is_recorded(make: MakeLLM, monkeypatch) -> None:
    llm, made = make(), []
    record = Graph.record_pieces
    monkeypatch.setattr(Graph, "record_pieces", lambda *a: made.append(a) or record(*a))
    expected = tokens(llm, prompts(4))
    counts = []
    for _ in range(3):
        llm.sleep()
        llm.wake_up()
        assert tokens(llm, prompts(4)) == expected
        counts.append(len(made))
    assert counts[0] > 0 and counts == counts[:1] * 3


@pytest.mark.parametrize("options", [{}, {"enforce_eager": True}, {"quantization": "fp8"}])
def test_new_weights_under_recordings(make: MakeLLM, tmp_path: Path, options) -> None:
    llm = make(**options)
    expected = tokens(llm, prompts(4))
    old = Path(llm.engine.info.model_path)
    shutil.copytree(old, tmp_path, dirs_exist_ok=True)
    weights = load_file(old / "model.safetensors")
    noisy = {n: (t + 0.2 * t.std() * torch.randn_like(t)).to(t.dtype) for n, t in weights.items()}
    save_file(noisy, tmp_path / "model.safetensors")
    wanted = tokens(make(model=str(tmp_path), **options), prompts(4))
    assert wanted != expected
    llm.update_weights((n, t.cuda()) for n, t in noisy.items())
    assert tokens(llm, prompts(4)) == wanted
    llm.sleep(1)
    llm.wake_up(["weights"])
    llm.update_weights(old)
    llm.wake_up()
    assert tokens(llm, prompts(4)) == expected
