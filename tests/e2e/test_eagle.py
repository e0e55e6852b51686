"""Drafts of EAGLE and Medusa heads: they are those of plain code, and change no answer."""

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.e2e import eagle
from tests.e2e.test_speculation import GREEDY, SETTINGS, answers, check

from hotshoe import LLM, GrammarSpec, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.layers import ForwardBatch
from hotshoe.plugins import PluginManager
from hotshoe.runner.runner import Runner
from hotshoe.speculation.drafting import Heads
from hotshoe.speculation.proposer import Wanted
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.eagle import Eagle3Head, EagleHead
from hotshoe_models.medusa import MedusaHeads


class Pair:
    """A model and a head on disk, opened together."""

    def __init__(self, path: Path, tokenizer: Path, plugins: PluginManager) -> None:
        self.path, self._tokenizer, self._plugins = path, tokenizer, plugins

    def write(self, method: str, kind: str, seed: int, changes: dict[str, object]) -> None:
        self.method = method
        self.model = eagle.model_weights(kind, seed)
        self.head = eagle.head_weights(method, self.model, seed + 1)
        eagle.write_model(self.path / "model", kind, self.model)
        shutil.copy(self._tokenizer, self.path / "model")
        self.write_head(**changes)

    def write_head(self, without: str = "", **changes: object) -> None:
        kept = {name: tensor for name, tensor in self.head.items() if name != without}
        eagle.write(self.path / "head", kept, **{**eagle.HEAD_CONFIGS[self.method], **changes})

    def open(self, drafts: bool = True, number: int = 3, **options) -> LLM:
        speculative = {
            "method": self.method,
            "model": str(self.path / "head"),
            "num_speculative_tokens": number,
            "adaptive": False,
        }
        settings = {"platform": "cpu", "max_num_seqs": 8, "seed": 3}
        settings["speculative_config"] = speculative if drafts else None
        settings |= options
        return LLM(str(self.path / "model"), plugins=self._plugins, **settings)


@pytest.fixture
def pair(model_dir: Path, plugins: PluginManager, tmp_path: Path) -> Callable[..., Pair]:
    def make(method: str, kind: str = "llama", seed: int = 3, **changes: object) -> Pair:
        made = Pair(tmp_path, model_dir / "tokenizer.json", plugins)
        made.write(method, kind, seed, changes)
        return made

    return make


@pytest.mark.parametrize(
    ("method", "kind", "platform"),
    [
        ("eagle", "llama", "cpu"),
        ("eagle", "qwen3", "plain"),
        ("eagle3", "llama", "plain"),
        ("eagle3", "qwen3", "cpu"),
        ("medusa", "qwen3", "cpu"),
    ],
)
def test_drafts_are_those_of_plain_code(
    pair: Callable[..., Pair],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    kind: str,
    platform: str,
) -> None:
    """Behind prompts in parts, behind accepted and refused drafts, and at ends of blocks."""
    made = pair(method, kind)
    seen: list[tuple[list[int], list[int]]] = []
    guessed: list[torch.Tensor] = []
    propose = Heads.propose
    head = {"eagle": EagleHead, "eagle3": Eagle3Head, "medusa": MedusaHeads}[method]
    guess = head.guess

    def spy(self: Heads, wanted: Sequence[Wanted]) -> list[list[int]]:
        seen.extend((list(one.request.token_ids), list(one.made)) for one in wanted)
        return propose(self, wanted)

    def look(self, hidden: torch.Tensor) -> torch.Tensor:
        guessed.append(hidden.clone())
        return guess(self, hidden)

    monkeypatch.setattr(Heads, "propose", spy)
    monkeypatch.setattr(head, "guess", look)
    prompts = [TokensPrompt([(n * i * i + i) % 251 for i in range(9 + 7 * n)]) for n in range(1, 3)]
    options = {"enable_prefix_caching": False, "block_size": 16, "platform": platform}
    with made.open(False, **options) as llm:
        plain = llm.generate(prompts, GREEDY)
    with made.open(max_num_batched_tokens=12, **options) as llm:
        guessed.clear()  # at the start
        found = llm.generate(prompts, GREEDY)
        stats = llm.stats()
        assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens
    for ours, theirs in zip(found, plain, strict=True):
        check(ours.outputs, theirs.outputs)
    lengths = set()
    for ids, drafts in seen[::4]:
        expected, _ = eagle.drafts(method, made.model, made.head, ids, 3)
        assert drafts and all(x in y for x, y in zip(drafts, expected, strict=False))
        lengths.add(len(drafts))
    assert 3 in lengths
    ids = seen[0][0]  # the shorter prompt's, whose first draft was guessed before all others
    _, first = eagle.drafts(method, made.model, made.head, ids, 1)
    torch.testing.assert_close(guessed[0][0].double(), first, atol=1e-3, rtol=1e-3)


#: Norms beside `fc`, by the key that says them.
NORMS = {
    "fc_norm": {f"fc_norm.{i}.weight": eagle.SIZE for i in range(3)},
    "norm_before_fc": {"input_norm.weight": 3 * eagle.SIZE},
}


@pytest.mark.parametrize("key", NORMS)
def test_heads_of_later_forms_make_the_drafts_of_plain_code(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """As speculators writes them, with a layer of Qwen 3, and at the top, with one of Llama."""
    made = pair("eagle3", "qwen3")
    for name, size in NORMS[key].items():
        made.head[name] = 1 + 0.3 * torch.randn(size)
    own: dict[str, object] = {key: True, "norm_output": True}
    if key == "fc_norm":
        norms = [f"midlayer.self_attn.{part}_norm.weight" for part in "qk"]
        made.head |= {name: 1 + 0.3 * torch.randn(eagle.DIM) for name in norms}
        layer = {**eagle.SIZES, "model_type": "qwen3", "layer_types": ["full_attention"]}
        own |= {
            "architectures": ["Eagle3DraftModel"],
            "speculators_model_type": "eagle3",
            "transformer_layer_config": layer,
            "eagle_aux_hidden_state_layer_ids": eagle.TAPPED,
            "eagle_config": None,
        }
    made.write_head(**own)
    seen: list[tuple[list[int], list[int]]] = []
    propose = Heads.propose

    def spy(self: Heads, wanted: Sequence[Wanted]) -> list[list[int]]:
        seen.extend((list(one.request.token_ids), list(one.made)) for one in wanted)
        return propose(self, wanted)

    monkeypatch.setattr(Heads, "propose", spy)
    with made.open(enable_prefix_caching=False) as llm:
        llm.generate(TokensPrompt(range(5, 14)), GREEDY)
    assert len(seen) > 3
    for ids, drafts in seen[::3]:
        expected, _ = eagle.drafts("eagle3", made.model, made.head, ids, 3, normed_output=True)
        assert drafts and all(x in y for x, y in zip(drafts, expected, strict=False))


@pytest.mark.parametrize("settings", [SETTINGS["all at once"], {"enforce_eager": True}])
def test_answers_are_those_without_drafts(
    pair: Callable[..., Pair], settings: dict[str, object]
) -> None:
    """Drawn or greedy, with a head that has an embedding of its own."""
    made = pair("eagle3", seed=5, norm_before_residual=True)
    made.head["embed_tokens.weight"] = made.model["model.embed_tokens.weight"].clone()
    made.write_head(norm_before_residual=True)
    if "kv_cache_memory_bytes" in settings:  # there are five caches
        settings = {**settings, "kv_cache_memory_bytes": 10 * 5 * 16 * 256}
    with made.open(False, enable_prefix_caching=False) as llm:
        expected = answers(llm)
    with made.open(**settings) as llm:
        check(answers(llm), expected)
        check(answers(llm), expected)  # now with a warm cache
        assert llm.stats().num_accepted_tokens > 0


@pytest.mark.parametrize(("method", "wants_all"), [("eagle", True), ("eagle3", False)])
def test_final_states_are_computed_where_somebody_reads_them(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, method: str, wants_all: bool
) -> None:
    wanted: list[torch.Tensor | None] = []
    forward = DenseDecoder.forward

    def spy(self: DenseDecoder, hidden: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        wanted.append(batch.outputs_at)
        return forward(self, hidden, batch)

    with pair(method).open(enforce_eager=True) as llm:
        monkeypatch.setattr(DenseDecoder, "forward", spy)
        llm.generate(TokensPrompt(range(20)), GREEDY)
    assert wanted[0] is None if wants_all else wanted[0].tolist() == [19]


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_chains_that_are_recorded_are_the_same(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Numbers of rows lie between those that are recorded, and above."""
    made = pair(method)
    record = Runner.record_graphs
    seen: list[list[list[int]]] = []
    propose = Heads.propose

    def spy(self: Heads, wanted: Sequence[Wanted]) -> list[list[int]]:
        seen.append([[*one.request.token_ids, *one.made] for one in wanted])
        return propose(self, wanted)

    def recording(runner: Runner, every: bool = False) -> None:
        record(runner, every)
        runner._ahead.record(lambda function: function, (1, 3, 5))

    monkeypatch.setattr(Heads, "propose", spy)
    with made.open(enable_prefix_caching=False) as llm:
        expected, plain = answers(llm), seen[:]
    monkeypatch.setattr(Runner, "record_graphs", recording)
    seen.clear()
    with made.open(enable_prefix_caching=False) as llm:
        check(answers(llm), expected)
    assert seen == plain
    assert {len(each) for each in seen} >= {1, 3, 4, 6}


def test_medusa_heads_change_no_answer(pair: Callable[..., Pair]) -> None:
    made = pair("medusa", "qwen3", seed=5)
    with made.open(False, enable_prefix_caching=False) as llm:
        expected = answers(llm)
    with made.open(max_num_batched_tokens=9) as llm:
        for _ in range(2):
            check(answers(llm), expected)
        assert llm.stats().num_accepted_tokens > 0


@pytest.mark.parametrize("method", ["eagle3", "medusa"])
def test_drafts_of_heads_keep_to_grammars(pair: Callable[..., Pair], method: str) -> None:
    made = pair(method)
    rows = GrammarSpec.regex("([a-c]{3}-[0-9]{2};){4}")
    params = [replace(GREEDY, grammar=rows, temperature=heat, seed=3) for heat in (0.0, 2.0)]
    prompts = [TokensPrompt([1, 2, 3])] * 3
    settings = {"structured_output_backend": "llguidance"}
    with made.open(False, **settings) as llm:
        plain = llm.generate(prompts, [*params, GREEDY])
    with made.open(async_scheduling=True, **settings) as llm:
        found = llm.generate(prompts, [*params, GREEDY])
        assert llm.stats().num_draft_tokens > 0
    for ours, theirs in zip(found, plain, strict=True):
        check(ours.outputs, theirs.outputs)
    for each in found[:2]:
        assert re.match(r"[a-c]{3}-[0-9]{2};", each.outputs[0].text)


def test_it_sleeps_and_wakes_with_the_model(pair: Callable[..., Pair]) -> None:
    prompt, params = TokensPrompt([1, 2, 3]), SamplingParams(temperature=0, max_tokens=20)
    with pair("eagle3").open() as llm:
        before = llm.generate(prompt, params)[0].outputs
        for level in (1, 2):
            accepted = llm.stats().num_accepted_tokens
            llm.sleep(level)
            llm.wake_up()
            check(llm.generate(prompt, params)[0].outputs, before)
            assert llm.stats().num_accepted_tokens > accepted


def test_random_weights_serve_for_measuring(pair: Callable[..., Pair]) -> None:
    with pair("eagle3").open(load_format="dummy") as llm:
        llm.generate(TokensPrompt([1, 2, 3]), GREEDY)
        assert llm.stats().num_draft_tokens > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 32}, "hidden_size of the head is 32"),
        ({"num_heads": 65}, "num_heads is 65"),
        ({"truncated_vocab_size": 100}, "truncated_vocab_size is 100"),
        ({"without": "lm_heads.2.weight"}, r"lacks 2\.1\.weight"),
    ],
)
def test_medusa_heads_that_do_not_fit_are_named(
    pair: Callable[..., Pair], changes: dict[str, object], message: str
) -> None:
    made = pair("medusa")
    made.write_head(**changes)
    with pytest.raises((ConfigError, CheckpointError), match=message):
        made.open()


VERIFIER = {"verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "x"}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 32}, "hidden_size of the head is 32, but the model has 64"),
        ({"target_hidden_size": 32}, "target_hidden_size of the head is 32"),
        ({"vocab_size": 512}, "vocab_size of the head is 512, but the model has 256"),
        ({"draft_vocab_size": 300}, "draft_vocab_size is 300"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2"),
        ({"speculators_config": VERIFIER}, "trained for Qwen3ForCausalLM, but .* Llama"),
        ({"fc_norm": True, "norm_before_fc": True}, "fc_norm is True"),
        ({"fc_norm": True}, r"lacks fc_norm\.0"),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "names Eagle3DeepseekV2ForCausalLM"),
        ({"speculators_model_type": "dflash"}, "speculators_model_type is 'dflash'"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is False"),
        ({"parallel_draft_step": 4}, "parallel_draft_step is 4"),
        ({"eagle_config": {}}, r"rising list .* not \[2, 2, 1\]"),
        ({"quantization_config": {"quant_method": "awq"}}, "it is quantized"),
        ({"without": "d2t"}, "lacks d2t"),
        ({"without": "fc.weight"}, r"lacks fc\.weight"),
        ({"without": "midlayer.hidden_norm.weight"}, r"lacks midlayer\.hidden_norm"),
    ],
)
def test_a_head_that_does_not_fit_is_named(
    pair: Callable[..., Pair], changes: dict[str, object], message: str
) -> None:
    made = pair("eagle3")
    made.write_head(**changes)
    with pytest.raises(
        (ConfigError, CheckpointError), match=f"speculative_config.model .*{message}"
    ):
        made.open()


def test_what_cannot_be_is_refused(pair: Callable[..., Pair]) -> None:
    made = pair("eagle3")
    for options, message in (
        ({"model": ""}, r"speculative_config\.model is missing"),
        ({"model": str(made.path / "nowhere")}, r"speculative_config\.model .*no model at"),
        ({"model": str(made.path / "model")}, "num_hidden_layers is 4"),
        ({"draft_tensor_parallel_size": 1}, "no option draft_tensor_parallel_size"),
        ({"method": "eagle"}, "head of EAGLE-3; use method eagle3"),
        ({"revision": "main"}, "only a model that is fetched by name has revisions"),
    ):
        own = {"method": "eagle3", "model": str(made.path / "head"), **options}
        with pytest.raises((ConfigError, CheckpointError), match=message):
            made.open(speculative_config=own)
    made.head["d2t"] += 100
    made.write_head()
    with pytest.raises(CheckpointError, match="d2t names tokens from"):
        made.open()
