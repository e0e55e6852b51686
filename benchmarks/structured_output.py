"""What structured output costs: compiling, masks for 32 rows, applying them, and whole throughput.

    python benchmarks/structured_output.py [--vocab-size 150000]

The vocabulary is the demo model's, padded with random words to `--vocab-size`. Texts are random
within the masks, which is harder for a matcher than what a model writes. Medians, microseconds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import string
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from hotshoe import LLM, GrammarSpec, SamplingParams
from hotshoe.grammar import GrammarBackend, GrammarCompiler, Matcher, Vocabulary
from hotshoe.grammar.vocabulary import vocabulary_of
from hotshoe.sampling.masks import TokenMasks
from hotshoe.text.tokenizer import Tokenizer
from hotshoe_demo import MODEL
from hotshoe_structured_output.llguidance_backend import LLGuidance
from hotshoe_structured_output.xgrammar_backend import XGrammar

ROWS, STEPS = 32, 200
FLAT = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
NESTED = {
    "type": "object",
    "properties": {f"p{i}": FLAT for i in range(12)},
    "required": [f"p{i}" for i in range(12)],
    "additionalProperties": False,
}
SPECS = {
    "flat object": GrammarSpec.json_schema(FLAT),
    "nested object": GrammarSpec.json_schema(NESTED),
    "any object": GrammarSpec.json_object(),
    "regex": GrammarSpec.regex(r"([a-z]+@[a-z]+\.com,?){1,20}"),
}


def padded(vocabulary: Vocabulary, size: int) -> Vocabulary:
    """Return a vocabulary with random words behind its own."""
    rng, known = random.Random(0), set(vocabulary.tokens)
    alphabet = string.ascii_letters + 'éäß中文{}[]":,0123456789'
    words = []
    while len(vocabulary.tokens) + len(words) < size:
        letters = "".join(rng.choice(alphabet) for _ in range(rng.randint(2, 8)))
        word = (rng.choice((" ", "")) + letters).encode()
        if word not in known:
            known.add(word)
            words.append(word)
    return Vocabulary((*vocabulary.tokens, *words), vocabulary.special, vocabulary.ending_ids)


def microseconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return (time.perf_counter() - begin) * 1e6


def masks(compiler: GrammarCompiler, spec: GrammarSpec, num_words: int) -> dict[str, float]:
    """Generate in 32 rows; return what a step costs."""
    rng = random.Random(1)
    begin = time.perf_counter()
    grammar = compiler.compile(spec)
    compiling = (time.perf_counter() - begin) * 1e6
    rows: list[Matcher] = [grammar.matcher() for _ in range(ROWS)]
    words = np.zeros((ROWS, num_words), np.int32)
    fills, accepts = [], []
    for _ in range(STEPS):
        fills.append(microseconds(partial(compiler.fill, rows, words)))
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
        alive = [np.flatnonzero(row) for row in bits]
        chosen = [int(rng.choice(ids)) if len(ids) else -1 for ids in alive]
        begin = time.perf_counter()
        kept = [token >= 0 and row.accept(token) for row, token in zip(rows, chosen, strict=True)]
        accepts.append((time.perf_counter() - begin) * 1e6)
        rows = [r if k else grammar.matcher() for r, k in zip(rows, kept, strict=True)]
    return {
        "compile": compiling,
        "first fill": fills[0],
        "fill": statistics.median(fills),
        "fill p99": sorted(fills)[int(0.99 * len(fills))],
        "accept": statistics.median(accepts),
    }


def applying(vocab_size: int) -> float:
    """Return what applying 32 masks costs on the host."""
    logits, rows = torch.randn(ROWS, vocab_size), np.arange(ROWS)
    packed = [np.full(-(-vocab_size // 32), -1, np.int32).tobytes()] * ROWS
    apply = TokenMasks(torch.device("cpu")).apply
    times = [microseconds(lambda: apply(logits, rows, rows.tolist(), packed)) for _ in range(50)]
    return statistics.median(times)


def throughput(llm: LLM, grammars: Sequence[GrammarSpec | None]) -> float:
    """Return tokens per second of 32 requests of 64 tokens, which take grammars in turn."""
    params = [
        SamplingParams(
            grammar=grammars[row % len(grammars)],
            temperature=1.0,
            max_tokens=64,
            ignore_eos=True,
            seed=1,
            detokenize=False,
        )
        for row in range(ROWS)
    ]
    begin = time.perf_counter()
    outputs = llm.generate(["Once upon a time"] * ROWS, params)
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    return tokens / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab-size", type=int, default=8192)
    size = parser.parse_args().vocab_size
    vocabulary = padded(vocabulary_of(Tokenizer.load(MODEL), 8192, (8181, 8183)), size)
    backends: list[GrammarBackend] = [LLGuidance(), XGrammar()]
    for backend in backends:
        compiler = backend.open(vocabulary)
        for name, spec in SPECS.items():
            found = masks(compiler, spec, vocabulary.num_words)
            shown = ", ".join(f"{part} {value:,.0f}" for part, value in found.items())
            print(f"{type(backend).__name__} {name}: {shown}")
    print(f"applying 32 masks of {size} tokens: {applying(size):,.0f}")
    letters = GrammarSpec.regex(r"[^\x00]*")
    array = GrammarSpec.json_schema({"type": "array", "items": {"type": "string"}})
    item = {"type": "string", "minLength": 300}
    schemas = [
        GrammarSpec.json_schema(
            {"type": "object", "properties": {f"key{i}": item}, "required": [f"key{i}"]}
        )
        for i in range(16)
    ]
    free: list[GrammarSpec | None] = [None]
    cases = {"free": free, "any text": [letters], "strings": [array], "16 schemas": schemas}
    with LLM("demo", max_num_seqs=ROWS) as llm:
        rates: dict[str, list[float]] = {}
        for _ in range(5):
            for name, grammars in cases.items():
                rates.setdefault(name, []).append(throughput(llm, grammars))
        print(json.dumps({k: round(statistics.median(v)) for k, v in rates.items()}), "tokens/s")


if __name__ == "__main__":
    main()
