"""Checkpoints that other programs write, against what transformers computes of the same weights.

`make real-compressor` and `make real-gptqmodel` install llm-compressor and GPTQModel, each in an
environment of its own beside this one; without it their tests are skipped.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe_demo.plugin import hotshoe_named_models

pytestmark = pytest.mark.slow  # the bundled model is quantized for each scheme
#: Whether x is rounded to 8 bits. Then a number of some texts falls to the other side, and all that
#: comes behind it differs; most texts agree.
COMPRESSOR = {
    "FP8_DYNAMIC": True,
    "FP8_BLOCK": True,
    "W8A8": True,
    "W4A16": False,
    "W4A16_ASYM": False,
    "GPTQ-W4A16": False,
    "NVFP4A16": False,
    "NVFP4": False,
    "MXFP4": False,
}
GPTQMODEL = dict.fromkeys(("GPTQ-4", "GPTQ-8", "GPTQ-3", "GPTQ-4-ACT", "GPTQ-4-ASYM", "AWQ"), False)
#: The environment's name, and a program in this folder.
PROGRAMS = {"compressor": ("compress.py", COMPRESSOR), "gptqmodel": ("gptq.py", GPTQMODEL)}
CASES = [(writer, scheme) for writer, (_, schemes) in PROGRAMS.items() for scheme in schemes]
CLOSE = 1e-3


@pytest.mark.parametrize(("writer", "scheme"), CASES)
def test_log_probabilities(writer: str, scheme: str, tmp_path: Path) -> None:
    python = Path(f"{sys.prefix}-{writer}", "bin", "python")
    if not python.exists():
        pytest.skip(f"needs an environment of its own: run `make real-{writer}`")
    program, schemes = PROGRAMS[writer]
    # GPTQModel takes one of two cores, and wants two.
    command = [
        "env",
        "GPTQMODEL_CPU_WORKERS=2",
        str(python),
        str(Path(__file__).with_name(program)),
    ]
    words = [hotshoe_named_models()["demo"], str(tmp_path), scheme]
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ids, logits = torch.load(tmp_path / scheme / "expected.pt")
    wanted = torch.log_softmax(logits, -1)
    options = {"dtype": "float32", "max_model_len": 64, "kv_cache_memory_bytes": 2**26}
    with LLM(str(tmp_path / scheme), **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=5)
        answers = llm.generate([TokensPrompt([token]) for token in ids.tolist()], params)
    errors = []
    for answer, expected in zip(answers, wanted, strict=True):
        found = answer.outputs[0].logprobs[0]
        ours = torch.tensor(found.logprobs)
        errors.append((ours - expected[list(found.token_ids)]).abs().max())
    far = torch.stack(errors)
    print(f"{scheme}: median {far.median():.1e}, largest {far.max():.1e}")
    assert (far.median() if schemes[scheme] else far.max()) < CLOSE
