"""Steps run one by one, recorded whole, and recorded in pieces: all say the same, to the bit.

Linear layers go row by row here, as one core of the device would: then no result depends on what
else is in a batch, nor on its padding, and equal means equal.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
import torch
from hotshoe_sim import kernels
from hotshoe_sim.device import QUEUE
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hotshoe import EngineConfig, SamplingParams
from hotshoe.engine.core.engine_core import EngineCore
from hotshoe.engine.start.setup import prepare
from hotshoe.engine.wire.messages import Add
from hotshoe.layers import AddRMSNorm, Attention
from hotshoe.platform import DeviceFacts
from hotshoe.plugins import HOOK_API, PluginManager, hookimpl
from hotshoe.plugins.manager import EntryPoint, installed_entry_points
from hotshoe.runner.graphs import Recordings
from hotshoe.runner.rows import StepInputs
from hotshoe.runner.runner import Runner
from hotshoe.slots import Candidate, GraphSpec, LinearSpec, Verdict, accept, refuse

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
#: 24 blocks of 4 tokens: four requests do not always find room.
BLOCKS, BLOCK_SIZE, LENGTH = 24, 4, 64
BLOCK_BYTES = 2 * 2 * BLOCK_SIZE * 2 * 8 * 4  # two layers, keys and values, two heads of 8 channels
OPTIONS = {
    "platform": "sim",
    "load_format": "dummy",
    "dtype": "float32",
    "seed": 5,
    "skip_tokenizer_init": True,
    "max_model_len": LENGTH,
    "block_size": BLOCK_SIZE,
    "kv_cache_memory_bytes": BLOCKS * BLOCK_BYTES,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 40,
}
#: What is recorded: nothing, decode steps, every step of up to 40 tokens.
WAYS: Mapping[str, dict[str, object]] = {
    "eager": {"enforce_eager": True},
    "whole": {"kernel": {"graph": "whole"}},
    "pieces": {},
}


class RowByRow:
    """Candidate `rows` of slot `linear`."""

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        assert not spec.bias

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        self._weight = torch.cat(list(tensors["weight"])).to("sim")

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty(len(x), len(self._weight), dtype=x.dtype, device="sim")
        kernels.launch(self._kernel, out, x, self._weight)
        return out

    @staticmethod
    def _kernel(out: Tensor, x: Tensor, weight: Tensor) -> None:
        for row, y in zip(x, out, strict=True):
            torch.mv(weight, row.contiguous(), out=y)

    def nbytes(self) -> int:
        return self._weight.nbytes


def whole_steps(spec: GraphSpec, facts: DeviceFacts) -> Verdict:
    return refuse("steps are recorded whole here") if spec.pieces else accept(5)


class Plugin:
    """Offers both."""

    HOTSHOE_HOOK_API = HOOK_API

    @hookimpl
    def hotshoe_candidates(self, platform: str) -> Sequence[Candidate]:
        return [
            Candidate("linear", "rows", lambda spec, facts: accept(99), RowByRow),
            Candidate("graph", "whole", whole_steps, "hotshoe_sim.kernels:Graph"),
        ]


@dataclass
class Engine:
    """An engine, and what its sampler has seen: rows, their lengths, and all of their logits."""

    core: EngineCore
    seen: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        runner = self.runner
        sample = runner._sample

        def watched(inputs: StepInputs, logits: Tensor, staged: object) -> object:
            rows, lengths = inputs.sample_rows.tolist(), inputs.sample_lens.tolist()
            if rows:
                self.seen.append((rows, lengths, logits.tolist()))
            return sample(inputs, logits, staged)

        runner._sample = watched

    @property
    def runner(self):
        return self.core.workers.main.execute.runner

    def run(self, requests: Sequence[Request]) -> list[object]:
        """Run requests as they come and go; return all news, and what the sampler saw."""
        for _ in range(2):
            self.core.step()  # finishes what an abort has left in flight
        self.core.reset_prefix_cache()
        self.seen.clear()
        news: list[object] = []
        waiting = list(enumerate(requests))
        for now in range(500):
            for number, request in [item for item in waiting if item[1].begin <= now]:
                params = SamplingParams(
                    temperature=0,
                    max_tokens=request.max_tokens,
                    ignore_eos=True,
                    prompt_logprobs=2 if request.judged else None,
                )
                self.core.add(Add([str(number)], request.prompt, params))
                waiting.remove((number, request))
            for number, request in enumerate(requests):
                if request.abort == now:
                    self.core.abort([str(number)])
            if self.core.has_work():
                news += [replace(output, scheduled_s=0.0) for output in self.core.step()]
            elif not waiting:
                return [*news, *self.seen]
        raise AssertionError("it does not end")


@dataclass(frozen=True)
class Request:
    """One sequence: its prompt, and the steps in which it comes and is given up."""

    prompt: list[int]
    max_tokens: int = 6
    begin: int = 0
    abort: int | None = None
    judged: bool = False


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Engine]]:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(MODEL))
    points = [*installed_entry_points(), EntryPoint("rows", "tests", "0", Plugin)]
    made = {
        way: Engine(
            EngineCore(prepare(EngineConfig(str(folder), **OPTIONS, **own), PluginManager(points)))
        )
        for way, own in WAYS.items()
    }
    yield made
    for engine in made.values():
        engine.core.close()


def prompts() -> st.SearchStrategy[list[int]]:
    """Parts of one text, so that prefixes are found again, and then something else."""
    text = [(7 * i * i + 3) % 61 for i in range(LENGTH)]
    tails = st.lists(st.integers(0, 60), min_size=1, max_size=8)
    return st.builds(lambda n, tail: text[:n] + tail, st.integers(0, 40), tails)


REQUESTS = st.builds(
    Request,
    prompts(),
    st.integers(1, 5),
    st.integers(0, 4),
    st.none() | st.none() | st.integers(1, 6),
    st.sampled_from([False, False, False, True]),
)


def assert_same(engines: Mapping[str, Engine], requests: Sequence[Request]) -> None:
    """Compare all that is said and seen; what differs is too long to be printed."""
    eager, whole, pieces = (engines[way].run(requests) for way in WAYS)
    for way, found in (("whole", whole), ("pieces", pieces)):
        same = [a == b for a, b in zip(eager, found, strict=True)]
        assert all(same), f"{way}: the first difference is in entry {same.index(False)}"


@settings(deadline=None, max_examples=5)
@given(requests=st.lists(REQUESTS, min_size=1, max_size=6))
def test_every_way_gives_the_same_logits(
    engines: Mapping[str, Engine], requests: list[Request]
) -> None:
    assert_same(engines, requests)


@contextmanager
def counting(owner: type, name: str, counts: Counter[str], label: str = "") -> Iterator[None]:
    """Count calls of a method."""
    original: Callable[..., object] = getattr(owner, name)

    def counted(*arguments: object) -> object:
        counts[label or f"{owner.__name__}.{name}"] += 1
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, counted)
        yield


CROWD = [Request([3 + i] * 3 + [5] * 24, 8, begin=i) for i in range(4)]


def test_a_crowd_is_preempted_and_finds_its_prefixes(engines: Mapping[str, Engine]) -> None:
    """What the random requests may not have reached."""
    before = {way: engine.core.stats() for way, engine in engines.items()}
    again = [*CROWD, Request(CROWD[0].prompt, begin=2)]
    assert_same(engines, again)
    for way, engine in engines.items():
        after = engine.core.stats()
        assert after.num_preemptions > before[way].num_preemptions
        assert after.num_hit_tokens > before[way].num_hit_tokens


LAYERS = {"Attention.__call__": 2, "AddRMSNorm.__call__": 4}


def test_replays_call_no_layer_but_attention(engines: Mapping[str, Engine]) -> None:
    """Nor is anything recorded anew."""
    counts: dict[str, Counter[str]] = {}
    for way, engine in engines.items():
        counts[way] = found = Counter()
        with (
            counting(Runner, "execute", found, "steps"),
            counting(Attention, "__call__", found),
            counting(kernels.Attention, "__call__", found, "attention"),
            counting(AddRMSNorm, "__call__", found),
            counting(Recordings, "replay", found),
            counting(kernels.Graph, "record_pieces", found),
        ):
            engine.run(CROWD)
    steps, decodes = counts["pieces"]["steps"], counts["whole"]["Recordings.replay"]
    assert 0 < decodes < steps
    for way, num_eager in (("eager", steps), ("whole", steps - decodes), ("pieces", 0)):
        assert {name: counts[way][name] for name in LAYERS} == {
            name: number * num_eager for name, number in LAYERS.items()
        }
    assert counts["pieces"]["Recordings.replay"] == steps
    assert counts["pieces"]["attention"] == 2 * (steps - decodes)
    assert counts["pieces"]["Graph.record_pieces"] == 0


def test_replayed_pieces_wait_for_nothing(
    engines: Mapping[str, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines["pieces"]
    replay, wait = engine.runner._replay_pieces, QUEUE.wait
    waits: list[int] = []
    found: list[int] = []

    def replayed(*arguments: object) -> Tensor:
        before = len(waits)
        logits = replay(*arguments)
        found.append(len(waits) - before)
        return logits

    monkeypatch.setattr(QUEUE, "wait", lambda: waits.append(0) or wait())
    monkeypatch.setattr(engine.runner, "_replay_pieces", replayed)
    engine.run(CROWD)
    assert waits and found
    assert set(found) == {0}


def test_few_sizes_are_recorded_and_the_report_says_of_which_steps(
    engines: Mapping[str, Engine],
) -> None:
    sizes = {way: engine.runner._mixed[False].sizes for way, engine in engines.items()}
    assert sizes == {"eager": (), "whole": (), "pieces": (32, 40)}
    reports = {way: engine.core.info.report.get("graphs") for way, engine in engines.items()}
    assert reports["eager"] is reports["pieces"] is None
    assert "of decode steps alone" in str(reports["whole"])
    assert "steps are recorded whole here" in str(reports["whole"])
