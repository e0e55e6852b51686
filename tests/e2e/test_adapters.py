"""Low-rank adapters: the tokens of transformers with the adapter merged into the weights."""

import copy
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

from hotshoe import LLM, EngineConfig, SamplingParams, TokensPrompt
from hotshoe.engine.explain.explanation import explain
from hotshoe.errors import CheckpointError, ConfigError, RequestError

#: Adapters and the matrices that each changes, with their rank.
ADAPTERS = {
    "attention": (("q_proj", "v_proj"), 4),
    "all": (("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), 8),
    "mlp": (("up_proj", "down_proj"), 2),
    "dora": (("q_proj", "v_proj", "o_proj", "up_proj", "down_proj"), 8),
}
#: Adapters of both ends of the model: whether they are whole matrices.
ENDS = {"ends": False, "wholes": True}
NAMES = (*ADAPTERS, *ENDS)
PROMPTS = [list(range(3, 40)), [9, 9, 1], list(range(60, 2, -1)), [5]]
COUNT = 12


def save_adapter(model, path: Path, targets: tuple[str, ...], rank: int, **config) -> None:
    """Write random factors in the form of PEFT, and merge them into a model."""
    tensors = {}
    values = {"peft_type": "LORA", "r": rank, "lora_alpha": 3 * rank, "bias": "none", **config}
    ranks, alphas = (values.get(f"{key}_pattern", {}) for key in ("rank", "alpha"))
    for name, module in model.named_modules():
        leaf = name.rsplit(".", 1)[-1]
        if leaf in targets:
            size, width = module.weight.shape
            rank, alpha = ranks.get(leaf, values["r"]), alphas.get(leaf, values["lora_alpha"])
            scale = alpha / (rank**0.5 if values.get("use_rslora") else rank)
            a, b = torch.randn(rank, width) * width**-0.5, torch.randn(size, rank) * rank**-0.5
            prefix = f"base_model.model.{name}"
            tensors |= {f"{prefix}.lora_A.weight": a, f"{prefix}.lora_B.weight": b}
            with torch.no_grad():
                module.weight += scale * b @ a
                if values.get("use_dora"):
                    lengths = module.weight.norm(dim=1)
                    tensors[f"{prefix}.lora_magnitude_vector"] = m = lengths * (
                        0.5 + torch.rand(size)
                    )
                    module.weight *= (m / lengths).unsqueeze(1)
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps(values))


def save_ends(model, path: Path, whole: bool) -> None:
    """Write an adapter of both ends, low-rank or whole, and merge it into a model."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    config = {"r": 4, "lora_alpha": 8}
    with torch.no_grad():
        if whole:
            config["modules_to_save"] = ["embed_tokens", "lm_head"]
            for end in (embedding, head):
                end.weight += torch.randn(end.weight.shape) * end.weight.std()
            tensors = {"model.embed_tokens.weight": embedding.weight, "lm_head.weight": head.weight}
        else:
            tensors = {
                "model.embed_tokens.lora_embedding_A": (low := torch.randn(4, 64)),
                "model.embed_tokens.lora_embedding_B": (high := torch.randn(32, 4)),
                "model.embed_tokens.base_layer.weight": embedding.weight.clone(),
                "lm_head.lora_A.weight": (a := torch.randn(4, 32) / 4),
                "lm_head.lora_B.weight": (b := torch.randn(64, 4) / 2),
            }
            embedding.weight += 2 * (high @ low).T
            head.weight += 2 * b @ a
    path.mkdir()
    named = {f"base_model.model.{name}": t.contiguous() for name, t in tensors.items()}
    save_file(named, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in `model`, and its adapters in folders of their names."""
    root = tmp_path_factory.mktemp("adapters")
    config = transformers.Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        attention_bias=True,
        max_position_embeddings=128,
        eos_token_id=None,
    )
    model = transformers.Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 1.5 * weight.shape[1] ** -0.5)
        for name, bias in model.named_parameters():
            if name.endswith("bias"):
                bias.normal_(0.0, 0.5)
    model.save_pretrained(root / "model")
    for name, (targets, rank) in ADAPTERS.items():
        merged = copy.deepcopy(model)
        kind = {"use_rslora": name == "mlp", "use_dora": name == "dora"}
        if name == "mlp":
            kind |= {"layers_to_transform": [0, 1], "layers_pattern": "layers"}
        if name == "all":
            kind |= {"rank_pattern": {"up_proj": 3, "q_proj": 5}, "alpha_pattern": {"q_proj": 2.5}}
        save_adapter(merged, root / name, targets, rank, **kind)
        merged.save_pretrained(root / f"{name}-merged")
    for name, whole in ENDS.items():
        merged = copy.deepcopy(model)
        save_ends(merged, root / name, whole)
        merged.save_pretrained(root / f"{name}-merged")
    return root


@pytest.fixture(scope="module")
def wanted(root: Path) -> dict[str | None, list[list[int]]]:
    """Greedy tokens of every prompt by adapter, as transformers writes them."""
    found: dict[str | None, list[list[int]]] = {}
    for name in (None, *NAMES):
        path = root / (f"{name}-merged" if name else "model")
        model = transformers.Qwen3ForCausalLM.from_pretrained(path).eval()
        found[name] = []
        for prompt in PROMPTS:
            ids = torch.tensor([prompt])
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=COUNT, do_sample=False
            )
            found[name].append(out[0, len(prompt) :].tolist())
    return found


def open_engine(root: Path, **options) -> LLM:
    return LLM(
        **{
            "model": str(root / "model"),
            "platform": "cpu",
            "dtype": "float32",
            "skip_tokenizer_init": True,
            "max_model_len": 128,
            "max_num_seqs": 8,
            "kv_cache_memory_bytes": 1 << 20,
            "enable_lora": True,
            "max_lora_rank": 8,
            "lora_modules": {name: str(root / name) for name in NAMES},
            **options,
        }
    )


@pytest.fixture(scope="module")
def llm(root: Path) -> Iterator[LLM]:
    with open_engine(root, max_loras=2) as llm:
        yield llm


def params(adapter: str | None) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=COUNT, adapter=adapter, ignore_eos=True)


def generate(llm: LLM, pairs) -> list[list[int]]:
    prompts = [TokensPrompt(PROMPTS[index]) for _, index in pairs]
    results = llm.generate(prompts, [params(name) for name, _ in pairs])
    return [result.outputs[0].token_ids for result in results]


def test_base_and_adapters_in_one_batch_write_their_own_tokens(llm: LLM, wanted) -> None:
    # More adapters than places, prompts that repeat with others, so that a shared prefix shows.
    pairs = [(name, index) for index in range(len(PROMPTS)) for name in (*NAMES, None)]
    for _ in range(2):
        found = generate(llm, pairs)
        assert found == [wanted[name][index] for name, index in pairs]


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_wakes_up_behind_steps_with_adapters(llm: LLM, wanted, level: int) -> None:
    pairs = [("all", 0)]
    assert generate(llm, pairs) == [wanted[name][index] for name, index in pairs]
    llm.sleep(level)
    llm.wake_up()
    assert generate(llm, pairs) == [wanted[name][index] for name, index in pairs]


@pytest.fixture(scope="module")
def heads(root: Path) -> Path:
    """Two Medusa heads of random numbers."""
    path, width, vocab = root / "heads", 32, 64
    path.mkdir()
    config = {"medusa_num_heads": 2, "medusa_num_layers": 1, "hidden_size": width}
    config |= {"architectures": ["MedusaModel"], "vocab_size": vocab}
    (path / "config.json").write_text(json.dumps(config))
    tensors = {}
    for i in range(2):
        tensors[f"{i}.0.linear.weight"] = torch.randn(width, width)
        tensors[f"{i}.0.linear.bias"] = torch.randn(width)
        tensors[f"{i}.1.weight"] = torch.randn(vocab, width)
    save_file(tensors, path / "model.safetensors")
    return path


@pytest.mark.parametrize("method", ["draft_model", "medusa", "ngram"])
def test_drafts_made_without_adapters_change_no_token(
    root: Path, heads: Path, wanted, method: str
) -> None:
    makers = {"draft_model": root / "model", "medusa": heads}
    own = {"model": str(makers[method])} if method in makers else {}
    drafts = {"method": method, "num_speculative_tokens": 2, "adaptive": False, **own}
    pairs = [(name, index) for index in range(len(PROMPTS)) for name in (*NAMES, None)]
    with open_engine(root, speculative_config=drafts) as llm:
        assert generate(llm, pairs) == [wanted[name][index] for name, index in pairs]
        stats = llm.stats()
        assert stats.num_draft_tokens > 0
        assert method != "draft_model" or stats.num_accepted_tokens > 0


def test_a_recording_serves_whoever_has_adapters(root: Path, wanted, caplog) -> None:
    with open_engine(root, max_num_seqs=2, enable_prefix_caching=False) as llm:
        for names in (("all", "mlp"), (None, "all"), ("mlp", "mlp"), (None, None)):
            pairs = list(zip(names, (0, 2), strict=True))
            assert generate(llm, pairs) == [wanted[name][index] for name, index in pairs]
    assert not any("without a recording" in message for message in caplog.messages)


def test_steps_with_adapters_are_recorded(root: Path) -> None:
    options = {"platform": "cpu", "skip_tokenizer_init": True, "enable_lora": True}
    told = explain(EngineConfig(str(root / "model"), **options))
    [graph] = [decision for decision in told.decisions if decision.slot == "graph"]
    assert graph.native
    assert "lora=native" in graph.spec.operations


def test_log_probabilities_of_prompts_are_those_of_the_adapter(llm: LLM, root: Path) -> None:
    asked = ("all", "ends", None, "wholes")
    wishes = [replace(params(name), prompt_logprobs=0) for name in asked]
    ids = torch.tensor([PROMPTS[0]])
    for name, found in zip(
        asked, llm.generate([TokensPrompt(PROMPTS[0])] * 4, wishes), strict=True
    ):
        path = root / (f"{name}-merged" if name else "model")
        model = transformers.Qwen3ForCausalLM.from_pretrained(path).eval()
        with torch.no_grad():
            rows = model(ids).logits[0, :-1].log_softmax(-1)
        wanted = rows.gather(1, ids[0, 1:, None]).flatten()
        actual = torch.tensor([p.logprobs[0] for p in found.prompt_logprobs[1:]])
        torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=2e-3)


BROKEN = {
    "the output matrix": ({"name": "lm_head", "width": 31}, "made for another model"),
    "what takes none": ({"name": "model.norm"}, "model.norm, which is no layer"),
    "a whole linear layer": (
        {"halves": "", "tensor": "base_model.model.model.layers.0.mlp.up_proj.weight"},
        "has a whole model.layers.0.mlp.up_proj",
    ),
    "more tokens": (
        {"halves": "", "tensor": "base_model.model.lm_head.weight", "shape": (65, 32)},
        r"lm_head has shape \[65, 32\]",
    ),
    "both kinds": (
        {"name": "lm_head", "tensor": "base_model.model.lm_head.weight", "shape": (64, 32)},
        "both factors and a whole matrix of lm_head",
    ),
    "unsaved modules": ({"config": {"modules_to_save": ["lm_head"]}}, "holds no such matrix"),
    "no modules": ({"config": {"modules_to_save": [1]}}, "is no list of names"),
    "another model": ({"width": 31}, "made for another model"),
    "too high a rank": ({"rank": 9}, "above --max-lora-rank 8"),
    "not a number": ({"value": float("nan")}, "hold NaN or infinity"),
    "one factor": ({"halves": "A"}, "has one factor of"),
    "another tensor": ({"tensor": "base_model.model.norm.bias"}, "is neither a factor of"),
    "nothing": ({"halves": ""}, "holds no adapter"),
    "DoRA": ({"config": {"use_dora": True}}, "has no magnitude of model.layers.1"),
    "DoRA, unsaid": ({"magnitude": 64}, "use_dora false, but .* has a magnitude of"),
    "a magnitude of others": (
        {"magnitude": 63, "config": {"use_dora": True}},
        r"have shape \[63\], but this model's matrix has 64",
    ),
    "no kind of DoRA": ({"config": {"use_dora": "x"}}, "use_dora 'x' is not served"),
    "another rank": ({"config": {"r": 3}}, "q_proj is 3, but the factors' rank is 4"),
    "a pattern": ({"config": {"alpha_pattern": {"(a+)+": 1}}}, "and only names are served"),
    "a layer left out": (
        {"config": {"layers_to_transform": [0, 2]}},
        r"layers_to_transform is \[0, 2\], but adapter_model.safetensors has factors of model.la",
    ),
    "one other layer": ({"config": {"layers_to_transform": 0}}, "layers_to_transform is 0, but"),
    "no number of a layer": (
        {"config": {"layers_to_transform": ["1"]}},
        "is no list of numbers",
    ),
    "layers of another name": (
        {"config": {"layers_to_transform": [1], "layers_pattern": ["h", "blocks"]}},
        r"layers_pattern \['h', 'blocks'\], but",
    ),
    "a pattern without layers": (
        {"config": {"layers_pattern": "layers"}},
        "layers_pattern is 'layers' without layers_to_transform",
    ),
    "no name of layers": (
        {"config": {"layers_to_transform": [1], "layers_pattern": "(a+)+"}},
        "is no list of names",
    ),
    "factors of no layer": (
        {"name": "lm_head", "config": {"layers_to_transform": [1]}},
        "has factors of lm_head",
    ),
    "no pattern": ({"config": {"rank_pattern": [2]}}, "is no JSON object"),
    "no scale": ({"config": {"lora_alpha": "x"}}, "lora_alpha must be a number"),
    "another method": ({"config": {"peft_type": "IA3"}}, "adapter 'all': .*'IA3' is not served"),
    "PiSSA": (
        {"config": {"init_lora_weights": "pissa_niter_4"}},
        "'pissa_niter_4' changed matrice",
    ),
    "OLoRA": ({"config": {"init_lora_weights": "OLoRA"}}, "init_lora_weights 'OLoRA' changed"),
    "aLoRA": ({"config": {"alora_invocation_tokens": [1, 2]}}, r"tokens \[1, 2\] is not served"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_adapter_that_does_not_fit_changes_nothing(
    llm: LLM, wanted, tmp_path: Path, case: str
) -> None:
    values, message = BROKEN[case]
    name = values.get("name", "model.layers.1.self_attn.q_proj")
    rank, width = values.get("rank", 4), values.get("width", 32)
    factors = {"A": torch.randn(rank, width), "B": torch.randn(64, rank)}
    factors["A"][0, 0] = values.get("value", 0.0)
    tensors = {
        f"base_model.model.{name}.lora_{half}.weight": factors[half]
        for half in values.get("halves", "AB")
    }
    if "magnitude" in values:
        key = f"base_model.model.{name}.lora_magnitude_vector"
        tensors[key] = torch.ones(values["magnitude"])
    if "tensor" in values:
        tensors[values["tensor"]] = torch.ones(values.get("shape", (48, 32)))
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    config = {"r": rank, "lora_alpha": 8, **values.get("config", {})}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        llm.load_adapter("all", tmp_path)
    assert generate(llm, [("all", 3)]) == [wanted["all"][3]]


def test_chunks_and_few_tokens_a_step(root: Path, wanted) -> None:
    with open_engine(root, max_num_batched_tokens=8, enable_prefix_caching=False) as llm:
        pairs = [("all", 0), ("mlp", 2), (None, 0), ("attention", 0)]
        assert generate(llm, pairs) == [wanted[name][index] for name, index in pairs]


def test_matrices_that_no_adapter_may_change_stay_as_they_are(root: Path, wanted) -> None:
    options = {"lora_target_modules": ["q_proj", "v_proj"], "lora_modules": {}}
    with open_engine(root, **options) as llm:
        llm.load_adapter("attention", root / "attention")
        pairs = [("attention", 0), (None, 1), ("attention", 2)]
        assert generate(llm, pairs) == [wanted[name][index] for name, index in pairs]
        for name in ("mlp", "ends", "wholes", "all"):
            with pytest.raises(CheckpointError, match=r"--lora-target-modules leaves .* out"):
                llm.load_adapter(name, root / name)
        assert {d.slot for d in llm.decisions} >= {"gated_mlp", "lora"}  # in one operation again
    with pytest.raises(ConfigError, match=r"names q_prj, but no matrix .* mean q_proj"):
        open_engine(root, lora_target_modules=["q_prj"])


def test_two_ranks_share_an_adapter(root: Path, wanted) -> None:
    with open_engine(root, tensor_parallel_size=2) as llm:
        pairs = [("all", 0), (None, 1), ("dora", 3), ("mlp", 2), ("ends", 1), ("wholes", 2)]
        assert generate(llm, pairs) == [wanted[name][index] for name, index in pairs]
        with pytest.raises(CheckpointError, match="no directory"):
            llm.load_adapter("other", root / "nothing")
        llm.unload_adapter("all")
        llm.load_adapter("all", root / "mlp")
        assert generate(llm, [("all", 2)]) == [wanted["mlp"][2]]


def test_two_stages_share_an_adapter(root: Path, wanted, tmp_path: Path) -> None:
    """Each takes what concerns its layers, and all refuse what one of them would."""
    options = {"pipeline_parallel_size": 2, "kv_cache_memory_bytes": 1 << 19}
    with open_engine(root, **options) as llm:
        pairs = [("all", 0), (None, 1), ("dora", 3), ("mlp", 2), ("ends", 0), ("wholes", 1)]
        assert generate(llm, pairs) == [wanted[name][index] for name, index in pairs]
        for layer in (0, 1):
            prefix = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
            parts = {"A": torch.randn(4, 31), "B": torch.randn(64, 4)}
            tensors = {f"{prefix}.lora_{half}.weight": part for half, part in parts.items()}
            save_file(tensors, tmp_path / "adapter_model.safetensors")
            (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4}))
            with pytest.raises(CheckpointError, match="made for another model"):
                llm.load_adapter("mlp", tmp_path)
        assert generate(llm, [("mlp", 1)]) == [wanted["mlp"][1]]


@pytest.mark.parametrize(
    ("slot", "options"),
    [("decoder_layer", {"tensor_parallel_size": 2}), ("model_step", {"pipeline_parallel_size": 2})],
)
def test_whole_layers_take_adapters_and_add_up(root: Path, wanted, slot: str, options) -> None:
    """Whoever serves a layer adds what adapters make, and what the other ranks have."""
    options |= {"kernel": {slot: "reference"}, "kv_cache_memory_bytes": 1 << 19}
    pairs = [("all", 0), (None, 1), ("dora", 3), ("mlp", 2), ("attention", 0)]
    with open_engine(root, **options) as llm:
        assert generate(llm, pairs) == [wanted[name][index] for name, index in pairs]
        assert {d.chosen for d in llm.decisions if d.slot == slot} == {"reference"}


def test_rows_do_not_depend_on_the_batch(root: Path, wanted) -> None:
    with open_engine(root, batch_invariant=True) as llm:
        pairs = [(name, 0) for name in (*NAMES, None)]
        assert generate(llm, pairs) == [wanted[name][0] for name, _ in pairs]
        assert {d.chosen for d in llm.decisions if d.slot == "lora"} == {"native"}


def test_an_adapter_comes_and_goes(root: Path, wanted, tmp_path: Path) -> None:
    with open_engine(root, lora_modules={}, enable_prefix_caching=True) as llm:
        assert llm.adapters() == {}
        with pytest.raises(RequestError, match="no adapter 'one' is loaded") as refused:
            generate(llm, [("one", 0)])
        assert refused.value.field == "adapter"
        llm.load_adapter("one", root / "all")
        assert generate(llm, [("one", 0)]) == [wanted["all"][0]]
        llm.load_adapter("one", root / "mlp")  # its cached prefixes are not the new one's
        assert generate(llm, [("one", 0), (None, 0)]) == [wanted["mlp"][0], wanted[None][0]]
        llm.enqueue([TokensPrompt(PROMPTS[0])], params("one"))
        for change in (lambda: llm.unload_adapter("one"), lambda: llm.load_adapter("one", root)):
            with pytest.raises(RequestError, match="adapter 'one' is in use"):
                change()
        assert [r.outputs[0].token_ids for r in llm.wait_for_completion()] == [wanted["mlp"][0]]
        llm.unload_adapter("one")
        with pytest.raises(RequestError, match="no adapter 'one' is loaded"):
            llm.unload_adapter("one")
        llm.load_adapter("two", root / "attention")
        gone = shutil.copytree(root / "mlp", tmp_path / "gone")
        llm.load_adapter("three", gone)
        llm.sleep(2)
        shutil.rmtree(gone)
        with pytest.raises(CheckpointError, match=r"'three': .* is no directory.*sleeps on"):
            llm.wake_up()
        llm.unload_adapter("three")
        llm.wake_up()
        assert generate(llm, [("two", 0)]) == [wanted["attention"][0]]


def test_without_the_flag_adapters_are_refused(root: Path) -> None:
    with (
        open_engine(root, enable_lora=False, lora_modules={}) as llm,
        pytest.raises(RequestError, match="--enable-lora"),
    ):
        llm.load_adapter("one", root / "all")


def test_adapters_of_the_start_need_the_flag(root: Path) -> None:
    with pytest.raises(RequestError, match="--enable-lora"):
        open_engine(root, enable_lora=False)
