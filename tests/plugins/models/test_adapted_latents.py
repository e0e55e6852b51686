"""Adapters of `kv_b_proj`: tokens of transformers with the factors added, however steps are cut."""

import copy

import pytest
import torch
from tests.plugins.models.conftest import Checkpoint
from tests.plugins.models.test_adapted import COUNT, SETTINGS, matrices, merge

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.layers import Changes
from hotshoe.runner.recording import Recordings
from hotshoe.slots import GraphSpec

#: Adapters, and the ends of the matrices that each changes.
ADAPTERS = {"up": ("kv_b_proj",), "more": ("kv_b_proj", "o_proj", "up_proj"), "q": ("q_b_proj",)}
LONG = list(range(3, 45))
PROMPTS = [LONG, [9, 9, 1], [*LONG[:33], 7]]
#: Options of engines: steps of few tokens, two ranks, operations that are slow and plain.
WAYS = {
    "whole prompts": {},
    "chunks": {"max_num_batched_tokens": 16, "enable_prefix_caching": False},
    "two ranks": {"tensor_parallel_size": 2},
    "references": {"kernel": {"mla_attention": "reference", "lora": "reference"}},
}


@pytest.fixture(scope="module")
def made(checkpoints, variants, tmp_path_factory) -> dict[str, dict[str | None, Checkpoint]]:
    """By variant: the model, and the model with each adapter, whose folder is beside it."""
    found = {}
    for name in ("deepseek-v3", "deepseek-v3.2"):
        base, root = checkpoints.get(variants[name]), tmp_path_factory.mktemp("latents")
        found[name] = {None: base}
        for adapter, ends in ADAPTERS.items():
            merged = copy.deepcopy(base.model)
            own = {k: m for k, m in matrices(merged).items() if k.endswith(ends)}
            assert own
            merge(own, root / adapter)
            found[name][adapter] = Checkpoint(root / adapter, merged, base.impl)
    return found


def check(made: dict[str | None, Checkpoint], llm: LLM) -> None:
    """Judge texts of all adapters and of none in one batch."""
    asked = [(prompt, adapter) for prompt in PROMPTS for adapter in made]
    wishes = [
        SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True, adapter=adapter)
        for _, adapter in asked
    ]
    results = llm.generate([TokensPrompt(prompt) for prompt, _ in asked], wishes)
    for (prompt, adapter), result in zip(asked, results, strict=True):
        made[adapter].assert_greedy(prompt, result.outputs[0].token_ids)


@pytest.mark.parametrize(
    "way", [pytest.param(w, marks=pytest.mark.slow) if w == "two ranks" else w for w in WAYS]
)
def test_latent_attention(made, way: str) -> None:
    check_variant(made["deepseek-v3"], WAYS[way])


def test_chosen_tokens(made) -> None:
    check_variant(made["deepseek-v3.2"], {})


def check_variant(own: dict[str | None, Checkpoint], options: dict[str, object]) -> None:
    modules = {name: str(one.path) for name, one in own.items() if name}
    settings = {**SETTINGS, "max_num_seqs": 12, "max_loras": 3, "lora_modules": modules, **options}
    with LLM(str(own[None].path), **settings) as llm:
        for _ in range(2):  # the second time over prefixes of the first
            check(own, llm)


def test_steps_are_recorded_once_such_an_adapter_came(made, monkeypatch) -> None:
    """By the reference, which runs what others record."""
    own, replayed = made["deepseek-v3"], []

    def note(recordings: Recordings, size: int) -> torch.Tensor:
        replayed.append(recordings)
        return replay(recordings, size)

    replay = Recordings.replay
    monkeypatch.setattr(Recordings, "replay", note)
    every = (GraphSpec(12, pieces=True), "")
    monkeypatch.setattr("hotshoe.runner.worker.recordable", lambda *_: every)
    settings = {**SETTINGS, "max_num_seqs": 12, "max_loras": 3}
    with LLM(str(own[None].path), kernel={"graph": "reference"}, **settings) as llm:
        runner = llm.engine.core.workers.main.execute.runner
        kinds = {None: Changes.NOTHING, "q": Changes.LINEAR, "up": Changes.LATENTS}
        for adapter, changes in kinds.items():
            if adapter:
                llm.load_adapter(adapter, own[adapter].path)
            replayed.clear()
            check({adapter: own[adapter]}, llm)
            assert set(replayed) == {runner._decodes[changes], runner._mixed[changes]}
        check({adapter: own[adapter] for adapter in kinds}, llm)
