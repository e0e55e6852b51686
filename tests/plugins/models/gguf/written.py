"""Files that another package writes of checkpoints, and the tokens that they must give."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tests.plugins.models.conftest import (
    HERE,
    VARIANTS,
    VOCAB,
    Variant,
    save_tiny,
    skip_where_older,
)
from tests.plugins.models.gguf.conftest import export, of_matrices

from hotshoe import LLM, SamplingParams, TokensPrompt

BY_NAME = {variant.name: variant for variant in VARIANTS}
#: Matrices that converters never quantize.
PLAIN = ("mlp.gate.weight", "router", "_bias", "conv", "A_log")
COUNT = 12
#: How specifications spell what experts of these types are held as.
FORMS = {"MXFP4": "fp4_e2m1", "Q4_1": "int4", "Q8_0": "int8"}


def experts(llm: LLM) -> str:
    """Return the specification of experts; "" where there are none."""
    return " ".join(d.spec for d in llm.engine.info.decisions if d.slot == "moe")


def round_trip(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    known = gguf.GGMLQuantizationType[kind]
    packed = gguf.quants.quantize(tensor.numpy().astype(np.float32), known)
    return torch.from_numpy(gguf.quants.dequantize(packed, known).reshape(tensor.shape))


def assert_tokens(
    variant: Variant,
    kind: str,
    tmp_path: Path,
    arch: str = "",
    export: Callable[..., Any] = export,
    computes: Callable[[Any], Any] = lambda model: model,
    **options: Any,
) -> None:
    """Compare the greedy tokens of a file, whose matrices are of a type, with transformers'.

    Args:
        computes: Makes of the checkpoint's model what computes as the file's does.
    """
    skip_where_older(variant)
    name = variant.name
    checkpoint = save_tiny(variant, tmp_path / "original", random.randrange(2**31))
    export(checkpoint, variant.family, tmp_path / f"{name}-{kind}.gguf", of_matrices(kind), arch)
    with torch.no_grad():
        for called, weight in checkpoint.model.named_parameters():
            if weight.dim() > 1 and kind != "F32" and not any(p in called for p in PLAIN):
                turned = variant.family == "GptOss" and "experts" in called
                rows = weight.transpose(1, 2).contiguous() if turned else weight
                made = round_trip(rows, kind)
                weight.copy_(made.transpose(1, 2) if turned else made)
    prompt = [random.randrange(3, VOCAB) for _ in range(9)]
    options |= {"platform": HERE, "dtype": "float32", "max_num_seqs": 2}
    model = str(tmp_path / f"{name}-{kind}.gguf")
    room = {"max_model_len": variant.max_model_len, "kv_cache_memory_bytes": 2**22}
    with LLM(model, **room, **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
        [found] = llm.generate([TokensPrompt(prompt)], params)
        held = experts(llm)
    assert not held or FORMS.get(kind, "") in held
    written = found.outputs[0].token_ids
    assert len(written) == COUNT
    wanted = replace(checkpoint, model=computes(checkpoint.model))
    wanted.assert_greedy(prompt, written, variant.max_model_len)
