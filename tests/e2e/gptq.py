"""Quantizes a model with GPTQModel, and says what transformers then computes.

    python tests/e2e/gptq.py MODEL FOLDER SCHEME...

A program of its own, since GPTQModel wants an environment of its own. FOLDER gets a checkpoint for
each scheme, and beside it `expected.pt` as `compress.py` writes it. GPTQModel says itself which
numbers its file means: transformers computes with these in float32.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm
from transformers import AutoModelForCausalLM

SEED, TOKENS, LENGTH = 5, 24, 64
#: A search for the best scales reads each text often.
SAMPLES, SAMPLES_OF_AWQ = 64, 4
AWQ = "AWQ"
SCHEMES: dict[str, dict[str, Any]] = {
    "GPTQ-4": {"bits": 4},
    "GPTQ-8": {"bits": 8},
    "GPTQ-3": {"bits": 3},
    "GPTQ-4-ACT": {"bits": 4, "desc_act": True},
    "GPTQ-4-ASYM": {"bits": 4, "sym": False},
    AWQ: {"bits": 4, "quant_method": "awq", "format": "gemm"},
}


def dequantized(path: Path, source: str, dtype: torch.dtype) -> torch.nn.Module:
    """Return a model of float32 with the numbers that a checkpoint means."""
    read = GPTQModel.load(str(path), backend=BACKEND.TORCH, device="cpu", dtype=dtype)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    model.load_state_dict({k: v.float() for k, v in read.model.named_parameters()}, strict=False)
    for name, module in read.model.named_modules():
        if hasattr(module, "qweight"):
            model.get_submodule(name).weight.data = weight_of(module).T.contiguous()
    return model


def weight_of(module: Any) -> torch.Tensor:
    """Return [inputs, outputs] float32 of a quantized linear layer."""
    module.scales.data = module.scales.data.float()
    if hasattr(module, "dequantize_weight"):
        return module.dequantize_weight()
    stored = module.qweight, module.qzeros, module.scales
    return dequantize_gemm(*stored, module.bits, module.group_size)


def main() -> None:
    source, folder = sys.argv[1], Path(sys.argv[2])
    for scheme in sys.argv[3:]:
        torch.manual_seed(SEED)
        # Its kernels for AWQ refuse float32.
        dtype = torch.float16 if scheme == AWQ else torch.float32
        fields = {"group_size": 32, "offload_to_disk": False, "device": "cpu"}
        model = GPTQModel.load(source, QuantizeConfig(**fields, **SCHEMES[scheme]), dtype=dtype)
        count = SAMPLES_OF_AWQ if scheme == AWQ else SAMPLES
        ids = torch.randint(5, 2000, (count, LENGTH)).tolist()
        data = [{"input_ids": row, "attention_mask": [1] * LENGTH} for row in ids]
        backend = {"backend": BACKEND.AWQ_TORCH} if scheme == AWQ else {}
        model.quantize(data, batch_size=4, **backend)
        model.save(str(folder / scheme))
        plain = dequantized(folder / scheme, source, torch.float16)
        tokens = torch.randint(5, plain.config.vocab_size - 200, (TOKENS,))
        with torch.no_grad():
            logits = plain(tokens[:, None]).logits[:, 0]
        torch.save((tokens, logits), folder / scheme / "expected.pt")
        print(scheme, flush=True)


if __name__ == "__main__":
    main()
