"""How many JSON Schemas of a public collection are kept right: masks alone, no model runs.

    python benchmarks/json_schemas.py --data DIR [--backend llguidance] [--limit 500] [--judged]

DIR holds files as MaskBench of https://github.com/guidance-ai/jsonschemabench has them, in its
`maskbench/data`: {"schema", "tests": [{"valid", "data"}]}. Whoever runs this fetches them. A schema
is *right* where every valid instance can be generated and no other one, *under-constrained* where
one that is not valid can be. With `--judged`, `oneOf` may be taken for `anyOf`, and finished texts
are judged as by `--structured-output-one-of judged`. The vocabulary is the demo model's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from hotshoe import GrammarSpec
from hotshoe.errors import RequestError
from hotshoe.grammar import CompiledGrammar, GrammarCompiler, Vocabulary
from hotshoe.grammar.backend import JudgingGrammar
from hotshoe.grammar.backends import GrammarBackends
from hotshoe.grammar.vocabulary import vocabulary_of
from hotshoe.text.tokenizer import Tokenizer
from hotshoe_demo import MODEL
from hotshoe_structured_output.plugin import hotshoe_grammars

#: Width of that model's logits.
VOCAB_SIZE = 8192


class Judge:
    """Compiles schemas as an engine does, and follows instances through them token by token."""

    def __init__(self, preferred: str, judged: bool = False) -> None:
        self._tokenizer = Tokenizer.load(MODEL)
        self._vocabulary: Vocabulary = vocabulary_of(self._tokenizer, VOCAB_SIZE, (8181, 8183))
        self._backends = GrammarBackends(hotshoe_grammars(), preferred, judged=judged)
        self._compilers: dict[str, GrammarCompiler] = {}
        self.first_masks: list[float] = []
        self.masks: list[float] = []

    def judge(self, schema: Any, tests: list[dict[str, Any]]) -> tuple[str, str]:
        """Return a verdict and, where it is not "right", why."""
        begin = time.perf_counter()
        try:
            spec = self._backends.choose(GrammarSpec.json_schema(schema))
            compiler = self._compiler(spec.backend or "")
            grammar = compiler.compile(spec)
        except RequestError as error:
            return "refused", str(error)
        words = np.zeros((1, self._vocabulary.num_words), np.int32)
        compiler.fill([grammar.matcher()], words)
        self.first_masks.append(time.perf_counter() - begin)
        wrong: dict[bool, str] = {}
        for number, test in enumerate(tests):
            kept, why = self._follows(compiler, grammar, test["data"])
            if kept is not test["valid"]:
                wrong.setdefault(bool(test["valid"]), f"test {number}: {why}")
        if False in wrong:
            return "under-constrained", wrong[False]
        return ("over-constrained", wrong[True]) if wrong else ("right", "")

    def _compiler(self, name: str) -> GrammarCompiler:
        if name not in self._compilers:
            self._compilers[name] = self._backends[name].open(self._vocabulary)
        return self._compilers[name]

    def _follows(
        self, compiler: GrammarCompiler, grammar: CompiledGrammar, data: Any
    ) -> tuple[bool, str]:
        text, matcher = json.dumps(data, ensure_ascii=False), grammar.matcher()
        words = np.zeros((1, self._vocabulary.num_words), np.int32)
        token_ids = self._tokenizer.encode(text, add_special_tokens=False)
        for place, token_id in enumerate(token_ids):
            begin = time.perf_counter()
            compiler.fill([matcher], words)
            self.masks.append(time.perf_counter() - begin)
            allowed = words.view(np.uint8)[0, token_id // 8] >> token_id % 8 & 1
            if not allowed or not matcher.accept(token_id):
                before = self._tokenizer.decode(token_ids[max(0, place - 12) : place + 1])
                return False, matcher.failure() or f"not after {before!r}"
        if not matcher.may_end():
            return False, "ends too early"
        objection = isinstance(grammar, JudgingGrammar) and grammar.objection(text.encode())
        return not objection, objection or "kept"


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))] * 1e3 if values else 0.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--limit", type=int, help="only so many, evenly spread")
    parser.add_argument("--details", type=Path, help="write the verdict of each schema as JSON")
    parser.add_argument("--judged", action="store_true")
    args = parser.parse_args()
    files = sorted(args.data.glob("*.json"))
    files = files[:: max(1, len(files) // args.limit)] if args.limit else files
    judge, details = Judge(args.backend, args.judged), {}
    verdicts: dict[str, Counter[str]] = defaultdict(Counter)
    for file in files:
        found = json.loads(file.read_text(encoding="utf-8"))
        if "schema" not in found:
            continue
        verdict, why = judge.judge(found["schema"], found["tests"])
        verdicts[file.name.split("---")[0].split("_")[0]][verdict] += 1
        details[file.name] = [verdict, why]
    for name, counts in sorted(verdicts.items()):
        print(f"{name}: {', '.join(f'{n} {what}' for what, n in counts.most_common())}")
    total = sum(verdicts.values(), Counter())
    print(f"all {total.total()}: {', '.join(f'{n} {what}' for what, n in total.most_common())}")
    times = [
        f"{name} p50 {percentile(values, 0.5):.2f} ms, p99 {percentile(values, 0.99):.1f} ms"
        for name, values in (("first mask", judge.first_masks), ("mask", judge.masks))
    ]
    print("; ".join(times))
    if args.details:
        args.details.write_text(json.dumps(details, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
