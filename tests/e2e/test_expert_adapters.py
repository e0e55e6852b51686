"""Adapters of experts: the tokens of transformers with the adapter merged into the weights."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file
from tests.e2e.test_adapters import COUNT, PROMPTS, params

from hotshoe import LLM, TokensPrompt
from hotshoe.errors import CheckpointError
from hotshoe.layers import Changes
from hotshoe.runner.graphs import Recordings
from hotshoe.slots import GraphSpec
from hotshoe.slots.reference.moe import Moe

EXPERTS, HIDDEN, INNER, RANK, SCALE = 4, 32, 24, 3, 2.0
SIZES = {
    "vocab_size": 64,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 128,
    "eos_token_id": None,
}
MODELS = {
    "qwen3": (
        transformers.Qwen3MoeConfig(
            num_experts=EXPERTS, moe_intermediate_size=INNER, head_dim=16, **SIZES
        ),
        "mlp.experts.{}.gate_proj mlp.experts.{}.up_proj mlp.experts.{}.down_proj".split(),
    ),
    "mixtral": (
        transformers.MixtralConfig(num_local_experts=EXPERTS, intermediate_size=INNER, **SIZES),
        [f"block_sparse_moe.experts.{{}}.w{number}" for number in (1, 3, 2)],
    ),
}


def low_rank(*shape: int) -> torch.Tensor:
    return torch.randn(shape) * shape[-1] ** -0.5


def one_by_one(experts, names: list[str]) -> dict[str, torch.Tensor]:
    """Merge random factors of each expert's matrices, and return them by name."""
    tensors = {}
    with torch.no_grad():
        for expert in range(1, EXPERTS):  # the first one is left alone
            rows = (*experts.gate_up_proj[expert].chunk(2), experts.down_proj[expert])
            for name, weight in zip(names, rows, strict=True):
                a, b = low_rank(RANK, weight.shape[1]), low_rank(weight.shape[0], RANK)
                weight += SCALE * b @ a
                tensors[f"{name.format(expert)}.lora_A.weight"] = a
                tensors[f"{name.format(expert)}.lora_B.weight"] = b
    return tensors


def together(experts, names: list[str]) -> dict[str, torch.Tensor]:
    """The same of tensors of all experts: of one as it lies, of the other one transposed."""
    tensors = {}
    with torch.no_grad():
        for weight, module, turned in (
            (experts.gate_up_proj, "mlp.experts.base_layer", True),
            (experts.down_proj, "mlp.experts", False),
        ):
            outputs, inputs = weight.shape[1:][::-1] if turned else weight.shape[1:]
            a, b = low_rank(EXPERTS * RANK, inputs), low_rank(outputs, RANK * EXPERTS)
            tensors |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
            a, b = a.view(EXPERTS, RANK, -1), b.view(-1, RANK, EXPERTS).permute(2, 0, 1)
            delta = SCALE * b @ a
            weight += delta.mT if turned else delta
    return tensors


FORMS: dict[str, tuple[Callable[..., dict[str, torch.Tensor]], dict[str, object]]] = {
    "one-by-one": (one_by_one, {}),
    "together": (
        together,
        {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
    ),
}


def save(model, path: Path, form: str, names: list[str]) -> None:
    make, more = FORMS[form]
    tensors = {
        f"base_model.model.model.layers.{number}.{name}": tensor.contiguous()
        for number, layer in enumerate(model.model.layers)
        for name, tensor in make(layer.mlp.experts, names).items()
    }
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors")
    config = {"r": RANK, "lora_alpha": SCALE * RANK, **more}
    (path / "adapter_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module", params=MODELS)
def made(request, tmp_path_factory) -> tuple[Path, dict[str | None, list[list[int]]]]:
    """A folder with a model and its adapters, and the tokens that each writes."""
    root = tmp_path_factory.mktemp(request.param)
    config, names = MODELS[request.param]
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 1.5 * weight.shape[-1] ** -0.5)
    model.save_pretrained(root / "model")
    wanted = {None: tokens_of(model)}
    for form in FORMS:
        merged = copy.deepcopy(model)
        save(merged, root / form, form, names)
        wanted[form] = tokens_of(merged)
    return root, wanted


def tokens_of(model) -> list[list[int]]:
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        out = model.generate(ids, attention_mask=mask, max_new_tokens=COUNT, do_sample=False)
        found.append(out[0, len(prompt) :].tolist())
    return found


def open_engine(root: Path, **options: object) -> LLM:
    fixed = {"platform": "cpu", "dtype": "float32", "skip_tokenizer_init": True}
    sizes = {"max_model_len": 128, "max_num_seqs": 4, "kv_cache_memory_bytes": 1 << 20}
    return LLM(str(root / "model"), enable_lora=True, max_loras=2, **fixed, **sizes, **options)


@pytest.mark.parametrize("kernel", ["reference", "native"])
def test_experts_with_adapters_and_without_share_steps(made, kernel: str) -> None:
    root, wanted = made
    assert wanted[None] not in [wanted[form] for form in FORMS]
    with open_engine(root, kernel={"moe": kernel}) as llm:
        for form in FORMS:
            llm.load_adapter(form, root / form)
        for _ in range(2):
            check_all(llm, wanted)


@pytest.mark.parametrize("recordable", [True, False])
def test_steps_are_recorded_once_such_an_adapter_came(made, monkeypatch, recordable: bool) -> None:
    """By the reference, which runs what others record. Experts that may ask the device for numbers
    are in no recording."""
    root, wanted = made
    replayed: list[Recordings] = []

    def note(recordings: Recordings, size: int) -> torch.Tensor:
        replayed.append(recordings)
        return replay(recordings, size)

    replay = Recordings.replay
    monkeypatch.setattr(Recordings, "replay", note)
    monkeypatch.setattr(Moe, "recordable", recordable, raising=False)
    every = (GraphSpec(4, pieces=True), "")
    monkeypatch.setattr("hotshoe.runner.worker.recordable", lambda *_: every)
    with open_engine(root, kernel={"moe": "reference", "graph": "reference"}) as llm:
        runner = llm.engine.core.workers.main.execute.runner
        of = {changes: {runner._decodes[changes], runner._mixed[changes]} for changes in Changes}

        def check(names) -> None:
            replayed.clear()
            check_all(llm, {name: wanted[name] for name in names})

        check([None])
        assert set(replayed) == of[Changes.NOTHING]
        for form in FORMS:
            llm.load_adapter(form, root / form)
        check(FORMS)
        assert set(replayed) == (of[Changes.EXPERTS] if recordable else set())
        check([None, *FORMS])
        assert set(replayed) & of[Changes.EXPERTS] or not recordable
        llm.sleep(2)
        llm.wake_up()
        runner = llm.engine.core.workers.main.execute.runner
        check(FORMS)
        assert (runner._decodes[Changes.EXPERTS] in replayed) == recordable


def test_two_ranks_divide_experts_with_adapters(made) -> None:
    """Of one model each rank has a part of all channels, of the other half the experts."""
    root, wanted = made
    whole = root.name.startswith("qwen3")
    with open_engine(root, tensor_parallel_size=2, enable_expert_parallel=whole) as llm:
        for form in FORMS:
            llm.load_adapter(form, root / form)
        check_all(llm, wanted)


def check_all(llm: LLM, wanted) -> None:
    pairs = [(name, index) for index in range(len(PROMPTS)) for name in wanted]
    results = llm.generate(
        [TokensPrompt(PROMPTS[index]) for _, index in pairs],
        [params(name) for name, _ in pairs],
    )
    found = [result.outputs[0].token_ids for result in results]
    assert found == [wanted[name][index] for name, index in pairs]


@pytest.mark.slow
def test_adapters_stay_with_experts_that_move(made) -> None:
    """Also where they have two places, and where an adapter comes after experts have moved."""
    root, wanted = made
    moving = {"enable_eplb": True, "num_redundant_experts": 2, "eplb_step_interval": 1}
    two = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    with open_engine(root, **two, **moving) as llm:
        for number, form in enumerate(FORMS, 1):
            llm.load_adapter(form, root / form)
            served = {name: wanted[name] for name in (None, *list(FORMS)[:number])}
            check_all(llm, served)
            check_all(llm, served)
        assert llm.stats().experts.num_moved > 4


def test_what_cannot_be_served_is_named(made, tmp_path: Path) -> None:
    root, _ = made
    with open_engine(root) as llm:
        for number, (a, b, r, message) in enumerate(
            (
                ((12, HIDDEN), (2 * INNER, 12), 6, "2 experts of .*, but this model has 4"),
                ((12, HIDDEN), (INNER + 1, 12), 3, "which is no tensor of this model's experts"),
                ((13, HIDDEN), (2 * INNER, 13), 3, "r of .* is 3, but .* has 13 rows"),
            )
        ):
            path = tmp_path / str(number)
            path.mkdir()
            prefix = "base_model.model.model.layers.0.mlp.experts.lora_"
            tensors = {f"{prefix}A.weight": torch.randn(a), f"{prefix}B.weight": torch.randn(b)}
            save_file(tensors, path / "adapter_model.safetensors")
            config = {"r": r, "lora_alpha": 8, "target_parameters": ["mlp.experts.gate_up_proj"]}
            (path / "adapter_config.json").write_text(json.dumps(config))
            with pytest.raises(CheckpointError, match=message):
                llm.load_adapter("bad", path)
