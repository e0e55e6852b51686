"""vLLM itself, in processes of its own, with the bridge and without: the same tokens.

`make real` makes an environment with that engine; elsewhere these tests are skipped. Models are
small, with random weights: Llama's, one of experts, and Llama's as AWQ against its own numbers.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="needs vLLM 0.32: run `make real`"
    ),
]
COUNT = 24
CODE = f"""
import json, os, sys
os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind",
                  VLLM_ENABLE_V1_MULTIPROCESSING="0", HOTSHOE_BRIDGE=sys.argv[2] and "cpu")
from vllm import LLM, SamplingParams
llm = LLM(model=sys.argv[1], skip_tokenizer_init=True, max_model_len=512, enforce_eager=True,
          dtype="float32", quantization=sys.argv[2] or None)
prompts = [{{"prompt_token_ids": [(7 * i + j * j) % 200 + 3 for j in range(n)]}}
           for i, n in enumerate((5, 40, 130, 1))]
params = SamplingParams(temperature=0, max_tokens={COUNT}, ignore_eos=True, logprobs=1,
                        detokenize=False)
found = [one.outputs[0] for one in llm.generate(prompts, params)]
chances = [[float(next(iter(at.values())).logprob) for at in one.logprobs] for one in found]
chosen = []
if sys.argv[2]:
    from hotshoe_bridge.vllm import operations
    chosen = sorted({{f"{{d.slot}}={{d.chosen}}" for d in operations().decisions}})
print("FOUND", json.dumps([[list(one.token_ids) for one in found], chances, chosen]))
"""
SIZES = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
}


def run(model: Path, quantization: str) -> tuple[list, list, list]:
    """Return tokens, log probabilities and what the bridge chose."""
    made = subprocess.run(
        [sys.executable, "-c", CODE, str(model), quantization],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = [line for line in made.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, made.stderr[-4000:]
    return json.loads(lines[0].removeprefix("FOUND "))


def saved(path: Path, kind: str, **more) -> Path:
    import transformers

    config = getattr(transformers, f"{kind}Config")(**SIZES, **more)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    model.save_pretrained(path)
    return path


def compared(plain: Path, bridged: Path, wanted: set[str]) -> None:
    tokens, chances, _ = run(plain, "")
    got, close, chosen = run(bridged, "hotshoe")
    assert got == tokens
    for one, other in zip(chances, close, strict=True):
        assert torch.allclose(torch.tensor(one), torch.tensor(other), atol=1e-4)
    assert wanted <= set(chosen)


ALL = {f"{slot}=native" for slot in ("attention", "rotary_and_cache", "rms_norm", "add_rms_norm")}


def test_a_model(tmp_path: Path) -> None:
    model = saved(tmp_path / "plain", "Llama")
    compared(model, model, ALL | {"linear=native", "gated_activation=native"})


def test_a_mixture_of_experts(tmp_path: Path) -> None:
    sizes = {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2}
    model = saved(tmp_path / "plain", "Qwen3Moe", norm_topk_prob=True, **sizes)
    compared(model, model, ALL | {"linear=native", "moe=native"})


def test_a_quantized_checkpoint(tmp_path: Path) -> None:
    """Four bits in words of eight, by the published order, against the numbers that they mean."""
    from safetensors.torch import load_file, save_file

    plain = saved(tmp_path / "plain", "Llama")
    tensors = load_file(plain / "model.safetensors")
    meant, stored = dict(tensors), dict(tensors)
    for name, weight in tensors.items():
        if "_proj" not in name:
            continue
        groups = weight.T.unflatten(0, (-1, 32))
        zeros = torch.randint(4, 12, (groups.shape[0], groups.shape[2]))
        scales = (groups.abs().amax(1) / 7).half()
        steps = (groups / scales[:, None].float() + zeros[:, None]).round().clamp(0, 15)
        exact = (steps - zeros[:, None]) * scales[:, None].float()
        meant[name] = exact.flatten(0, 1).T.contiguous()
        base = name.removesuffix(".weight")
        del stored[name]
        stored |= {
            f"{base}.qweight": words(steps.flatten(0, 1)),
            f"{base}.qzeros": words(zeros),
            f"{base}.scales": scales.contiguous(),
        }
    save_file(meant, plain / "model.safetensors", metadata={"format": "pt"})
    bridged = tmp_path / "awq"
    bridged.mkdir()
    save_file(stored, bridged / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 32,
        "version": "gemm",
        "zero_point": True,
    }
    (bridged / "config.json").write_text(json.dumps(config))
    compared(plain, bridged, ALL | {"linear=groups"})


def words(values: torch.Tensor) -> torch.Tensor:
    """Put eight columns into a word, in the order of AWQ."""
    eight = values.long().unflatten(1, (-1, 8))
    packed = sum(eight[..., at] << 4 * i for i, at in enumerate((0, 2, 4, 6, 1, 3, 5, 7)))
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).int().contiguous()
