"""Mistral's own form, as an independent writer makes it of transformers' models."""

import base64
import copy
import json
import random
from statistics import median

import pytest
import torch
from safetensors.torch import save_file

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError
from hotshoe.text.tokenizer import Tokenizer
from hotshoe_models.consolidated import FORMAT, MistralModel

OWN = {
    "embed_tokens": "tok_embeddings",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "kv_a_proj_with_mqa": "attention.wkv_a_with_mqa",
    "q_a_layernorm": "attention.q_a_norm",
    "kv_a_layernorm": "attention.kv_a_norm",
    **{f"{part}_proj": f"attention.w{part}" for part in "qkvo"},
    **{f"{part}_proj": f"attention.w{part}" for part in ("q_a", "q_b", "kv_b")},
    "gate_proj": "w1",
    "down_proj": "w2",
    "up_proj": "w3",
}


def interleaved(rows, heads):
    """Put the halves of each head's rows together pair by pair, row by row."""
    size = len(rows) // heads
    order = [h * size + (i % 2) * (size // 2) + i // 2 for h in range(heads) for i in range(size)]
    return rows[order]


def own_tensors(model):
    """Yield names and tensors as the publisher has them."""
    config = model.config
    latent = getattr(config, "kv_lora_rank", None) is not None
    inner = "" if latent else "feed_forward."
    for name, tensor in model.state_dict().items():
        words = name.removeprefix("model.").removesuffix(".weight").split(".")
        if words == ["lm_head"]:
            if not config.tie_word_embeddings:
                yield "output.weight", tensor
            continue
        prefix, last = ".".join(words[:2]) if words[0] == "layers" else "", words[-1]
        if "experts" in words:  # of all of them, in one tensor
            for expert, one in enumerate(tensor):
                parts = one.chunk(2) if last == "gate_up_proj" else [one]
                written = ("w1", "w3") if len(parts) == 2 else ("w2",)
                for part, matrix in zip(written, parts, strict=True):
                    yield f"{prefix}.{inner}experts.{expert}.{part}.weight", matrix
            continue
        if last in ("q_proj", "k_proj") and not latent:
            heads = config.num_attention_heads if last[0] == "q" else config.num_key_value_heads
            tensor = interleaved(tensor, heads)
        if words[-2:] == ["mlp", "gate"]:
            own = f"{prefix}.{inner}gate"
        elif "shared_experts" in words:
            own = f"{prefix}.shared_experts.{OWN[last]}"
        elif "mlp" in words:
            own = f"{prefix}.feed_forward.{OWN[last]}"
        else:
            own = f"{prefix}.{OWN.get(last, last)}".removeprefix(".")
        yield f"{own}.weight", tensor


def own_params(config):
    """Return what params.json says of a model."""
    given = {
        "dim": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "head_dim": getattr(config, "head_dim", None),
        "hidden_dim": config.intermediate_size,
        "n_heads": config.num_attention_heads,
        "n_kv_heads": config.num_key_value_heads,
        "norm_eps": config.rms_norm_eps,
        "vocab_size": config.vocab_size,
        "tied_embeddings": config.tie_word_embeddings,
        "max_position_embeddings": config.max_position_embeddings,
        "model_type": "transformer",
        "vision_encoder": None,
    }
    rope = config.rope_parameters
    given["rope_theta"] = rope["rope_theta"]
    if rope["rope_type"] == "yarn":
        length = rope["original_max_position_embeddings"]
        given["yarn"] = {
            "factor": rope["factor"],
            "original_max_position_embeddings": length,
            "beta": rope.get("beta_fast", 32),
            "alpha": rope.get("beta_slow", 1),
            "apply_scale": False,
        }
        beta = rope["llama_4_scaling_beta"]
        given["llama_4_scaling"] = {"original_max_position_embeddings": length, "beta": beta}
    if getattr(config, "num_local_experts", None):
        experts, chosen = config.num_local_experts, config.num_experts_per_tok
        given["moe"] = {"num_experts": experts, "num_experts_per_tok": chosen}
    if getattr(config, "kv_lora_rank", None):
        sizes = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
        given |= {key: getattr(config, key) for key in (*sizes, "v_head_dim")}
        given["moe"] = {
            "num_experts": config.n_routed_experts,
            "num_experts_per_tok": config.num_experts_per_tok,
            "num_shared_experts": config.n_shared_experts,
            "expert_hidden_dim": config.moe_intermediate_size,
            "first_k_dense_replace": config.first_k_dense_replace,
            "routed_scale": config.routed_scaling_factor,
            "num_expert_groups": config.n_group,
            "num_expert_groups_per_tok": config.topk_group,
        }
    return given


def publish(checkpoint, path, change=None, **more):
    """Write the form into a directory, its tensors in two files."""
    tensors = dict(own_tensors(checkpoint.model))
    tensors = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    if change is not None:
        tensors = dict(pair for item in tensors.items() for pair in change(*item))
    names = sorted(tensors)
    for part, number in ((names[::2], 1), (names[1::2], 2)):
        file = path / f"consolidated-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, file)
    window = getattr(checkpoint.model.config, "sliding_window", None)
    params = own_params(checkpoint.model.config) | {"sliding_window": window} | more
    (path / "params.json").write_text(json.dumps(params))
    return path


def make(path, **options):
    sizes = {"block_size": 8, "max_model_len": 64, "max_num_batched_tokens": 16}
    return LLM(str(path), platform="cpu", skip_tokenizer_init=True, **sizes, **options)


def greedy(llm, prompts, count=12):
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    results = llm.generate([TokensPrompt(prompt) for prompt in prompts], params)
    return [result.outputs[0].token_ids for result in results]


def draw(count):
    return [random.randrange(3, 256) for _ in range(count)]


@pytest.mark.parametrize("name", ["mistral", "mistral-full", "ministral3", "mixtral", "mistral4"])
def test_tokens_are_those_of_transformers(variants, name, checkpoints, tmp_path):
    checkpoint = checkpoints.get(variants[name])
    publish(checkpoint, tmp_path)
    shared = draw(24)
    prompts = [[*shared, 7], draw(9), [*shared, 8, 9], draw(1)]
    with make(tmp_path, dtype="float32", max_num_seqs=3) as llm:
        for prompt, written in zip(prompts, greedy(llm, prompts), strict=True):
            checkpoint.assert_greedy(prompt, written, 64)


def rounded(weight):
    """Return a matrix in 8 bits, and its scale."""
    scale = weight.abs().max() / 448.0
    return (weight / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def quantized(name, weight):
    """Yield a matrix in 8 bits, with its scale and that of what it multiplies."""
    if not name.startswith("layers.") or weight.dim() != 2 or name.endswith("gate.weight"):
        yield name, weight
        return
    stem = name.removesuffix("weight")
    numbers, scale = rounded(weight)
    yield name, numbers
    yield f"{stem}qscale_weight", scale
    yield f"{stem}qscale_act", torch.tensor(0.1)
    if name.endswith("wk.weight"):
        yield f"{stem.removesuffix('wk.')}k_fake_quantizer.qscale_act", torch.tensor(1.0)


def without_scales(name, weight):
    """Yield a matrix in 8 bits, where x has no scale."""
    yield from (item for item in quantized(name, weight) if not item[0].endswith("qscale_act"))


def rounded_model(model):
    """Return transformers' model of the numbers that 8 bits stand for."""
    found = copy.deepcopy(model)
    for name, weight in found.state_dict().items():
        if ".layers." not in name or weight.dim() < 2 or name.endswith("gate.weight"):
            continue
        for one in weight if weight.dim() == 3 else [weight]:
            for part in one.chunk(2) if "gate_up" in name else [one]:
                numbers, scale = rounded(part)
                part.copy_(numbers.float() * scale)
    return found


@pytest.mark.parametrize(
    ("name", "kind"), [("ministral3", "TENSOR"), ("mixtral", None), ("mistral4", "NO_SCALES")]
)
def test_eight_bits_stand_for_their_numbers(variants, name, kind, checkpoints, tmp_path):
    """x is rounded to 8 bits as well, so log probabilities are near theirs."""
    checkpoint = checkpoints.get(variants[name])
    given = {"qformat_weight": "fp8_e4m3", "qscheme_act": kind}
    change = quantized if kind != "NO_SCALES" else without_scales
    publish(checkpoint, tmp_path, change, quantization=given)
    prompts, model = [draw(n) for n in range(2, 34, 4)], rounded_model(checkpoint.model)
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=10)
    with make(tmp_path, dtype="float32") as llm:
        results = llm.generate([TokensPrompt(prompt) for prompt in prompts], params)
    errors, spread = [], []
    for prompt, result in zip(prompts, results, strict=True):
        with torch.inference_mode():
            theirs = model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
        found = result.outputs[0].logprobs[0]
        pairs = zip(found.token_ids, found.logprobs, strict=True)
        errors += [abs(float(theirs[token]) - value) for token, value in pairs]
        spread.append(float(theirs.std()))
    # Where other experts are chosen, some differ more.
    assert median(errors) < 0.4 * median(spread)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": None}, "params.json: dim is missing"),
        ({"moe": []}, None),
        ({"moe": [1]}, "moe must be an object"),
        ({"moe": {"num_shared_experts": 1}}, "shared expert without latent attention"),
        ({"sliding_window": [4, 8]}, "sliding_window must be windows of one size"),
        ({"sliding_window": [4, None]}, "in whole periods"),
        ({"sliding_window": "many"}, "sliding_window is 'many', no number"),
        ({"sliding_window": [{}]}, "sliding_window is {}, no number"),
        ({"sliding_window": 1e999}, "sliding_window is inf, no number"),
        ({"llama_4_scaling": {"beta": 0.1}}, "llama_4_scaling needs a yarn of the same"),
        ({"quantization": {"qformat_weight": "fp4"}}, "qformat_weight fp8_e4m3 .* alone"),
        ({"quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "X"}}, "qscheme_act"),
    ],
)
def test_what_is_not_read_is_named(tmp_path, changes, message):
    given = {"dim": 8, "n_layers": 3, "n_heads": 2, "n_kv_heads": 1, "vocab_size": 300}
    path = tmp_path / "params.json"
    path.write_text(json.dumps(given | changes))
    if message is None:
        assert MistralModel(path).config()["architectures"] == ["MistralForCausalLM"]
        return
    with pytest.raises(CheckpointError, match=message):
        MistralModel(path)


def test_windows_repeat_and_lengths_have_a_default(tmp_path):
    given = {"dim": 8, "n_layers": 4, "n_heads": 2, "n_kv_heads": 1, "vocab_size": 300}
    path = tmp_path / "params.json"
    path.write_text(json.dumps(given | {"sliding_window": [None, 6]}))
    found = MistralModel(path).config()
    assert found["layer_types"] == ["full_attention", "sliding_attention"] * 2
    assert (found["sliding_window"], found["max_position_embeddings"]) == (6, 128_000)
    path.write_text(json.dumps(given | {"sliding_window": "4096", "max_seq_len": 77}))
    found = MistralModel(path).config()
    assert (found["sliding_window"], found["max_position_embeddings"]) == (4096, 77)
    assert found["rope_parameters"]["rope_theta"] == 1e4
    path.write_text(json.dumps(given))
    assert MistralModel(path).config()["rope_parameters"]["rope_theta"] == 1e6


def test_which_directories_are_such_models():
    own = ["params.json", "tekken.json", "consolidated.safetensors"]
    assert FORMAT.choose(own, None) == "params.json"
    assert FORMAT.choose([*own, "config.json"], None) is None
    assert FORMAT.choose(own, "Q4_K_M") is None
    assert FORMAT.choose(own[:2], None) == "params.json"  # as far as it was fetched
    assert FORMAT.choose(own[1:], None) is None


def test_other_files_and_missing_ones_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json is no params\.json; give the dir"):
        FORMAT.open(tmp_path / "config.json")
    given = {"dim": 8, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "vocab_size": 300}
    path = tmp_path / "params.json"
    path.write_text(json.dumps(given))
    model = FORMAT.open(path)
    with pytest.raises(CheckpointError, match="holds no consolidated"):
        model.weights(torch.float32)
    tensors = {"layers.0.attention.wq.weight": torch.zeros(6, 8), "vision_encoder.x": torch.ones(1)}
    save_file(tensors, tmp_path / "consolidated.safetensors")
    source = model.weights(torch.float32)
    [name] = source.names()
    with pytest.raises(CheckpointError, match="has 6 rows, which are not those of 2 heads"):
        source.tensor(name)


def test_its_tokenizer_and_template(tmp_path):
    given = {"dim": 8, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "vocab_size": 260}
    (tmp_path / "params.json").write_text(json.dumps(given))
    vocab = [{"rank": i, "token_bytes": base64.b64encode(bytes([i])).decode()} for i in range(256)]
    special = [{"rank": i, "token_str": t} for i, t in enumerate(("<unk>", "<s>", "</s>"))]
    config = {"pattern": ".", "default_vocab_size": 260, "default_num_special_tokens": 4}
    tekken = {"config": config, "vocab": vocab, "special_tokens": special}
    (tmp_path / "tekken.json").write_text(json.dumps(tekken))
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    model = FORMAT.open(tmp_path / "params.json")
    tokenizer = Tokenizer.of_file(tmp_path / "params.json", model)
    assert tokenizer.encode("ab") == [1, 4 + 97, 4 + 98]
    assert model.tokenizer().config["chat_template"] == "{{ messages[0].content }}"
