"""Two trees of Hotshoe by turns on a CPU, in seconds of one core.

    git worktree add ../before COMMIT && cd ../before && python setup.py build_ext --inplace
    python benchmarks/trees.py ../before . [--rounds 9] [--models demo DIRECTORY]

Both run in this interpreter's environment, each with the packages of its own tree. Every engine
computes with one thread and keeps the model in memory; a directory without weights gets random
ones. Time is what the kernel says that a process has computed, as it does not grow while others
use the machine. A ratio below 1 means that the second tree is faster.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from child import Child

SEQUENCES = 16
#: case -> (sequences, tokens of each prompt, tokens of each answer)
CASES = {
    "one stream 16/1": (1, 16, 1),
    "one stream 16/65": (1, 16, 65),
    "prefill 1,024": (1, 1024, 1),
    "8 x (16/48)": (8, 16, 48),
    "16 x (128/64)": (SEQUENCES, 128, 64),
}
#: Tokens that prompts are drawn from: most vocabularies have them, and none of them is special.
VOCABULARY = range(300, 2000)
TYPES = {"bfloat16": {}, "int8": {"quantization": "int8"}}


def serve(model: str, options: dict[str, str]) -> None:
    """Compute what each line of the input asks for."""
    from hotshoe import LLM, SamplingParams, TokensPrompt

    is_bare = Path(model).is_dir() and not any(Path(model).glob("*.safetensors"))
    bare = {"load_format": "dummy", "skip_tokenizer_init": True} if is_bare else {}
    llm = LLM(
        model,
        platform="cpu",
        dtype="bfloat16",
        max_model_len=1152,
        max_num_seqs=SEQUENCES,
        kv_cache_memory_bytes=1 << 28,
        enable_prefix_caching=False,
        platform_options={"threads": 1},
        **bare,
        **options,
    )
    for line in itertools.chain(["[[[300, 301]], 2]"], sys.stdin):
        prompts, num_tokens = json.loads(line)
        params = SamplingParams(
            temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False
        )
        llm.generate([TokensPrompt(ids) for ids in prompts], params)
        print("done", flush=True)


def started(tree: Path, model: str, options: dict[str, str]) -> Child:
    """Start a tree's engine."""
    places = [tree / "core", tree / "csrc/python", *tree.glob("p*/*/")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    return Child([sys.executable, __file__, "--serve", model, json.dumps(options)], env)


def compare(trees: list[Path], model: str, kind: str, rounds: int) -> None:
    """Time both trees by turns, in random order, and print a row for each case."""
    children = [started(tree, model, TYPES[kind]) for tree in trees]
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for case, (count, size, num_tokens) in CASES.items():
            prompts = [random.choices(VOCABULARY, k=size) for _ in range(count)]
            for place in random.sample(range(len(trees)), len(trees)):
                found[case, place].append(children[place].seconds(prompts, num_tokens))
    for child in children:
        child.close()
    for case in CASES:
        before, after = (1e3 * statistics.median(found[case, place]) for place in (0, 1))
        print(
            f"| {model}, {kind} | {case} | {before:.1f} | {after:.1f} | {after / before:.3f} |",
            flush=True,
        )


def main() -> None:
    """Measure, and print medians."""
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], json.loads(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--models", nargs="+", default=["demo"])
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
    args = parser.parse_args()
    print("| model | case | before, ms | after, ms | ratio |\n|---|---|---|---|---|")
    for model, kind in itertools.product(args.models, args.types):
        compare([args.before.resolve(), args.after.resolve()], model, kind, args.rounds)


if __name__ == "__main__":
    main()
