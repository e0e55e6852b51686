"""One GGUF file in Hotshoe and in llama.cpp, by turns, in seconds of one core.

    python benchmarks/gguf.py FILE.gguf --peer PYTHON [--rounds 5] [--isa best avx2]

PYTHON is an interpreter that has the package xllamacpp, which is llama.cpp's server as a module.
Every engine computes with one thread, and keeps the model in memory. Time is what the kernel says
that a process has computed, as it does not grow while others use the machine; so cases of several
threads are not measured here.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from child import Child

SEQUENCES = 16
#: case -> (sequences, tokens of each prompt, tokens of each answer)
CASES = {
    "one stream 16/1": (1, 16, 1),
    "one stream 16/65": (1, 16, 65),
    "prefill 1,024": (1, 1024, 1),
    "16 x (128/64)": (SEQUENCES, 128, 64),
}
#: Tokens that prompts are drawn from: most vocabularies have them, and none of them is special.
VOCABULARY = range(300, 8000)


def hotshoe(file: str, isa: str) -> Any:
    """Return what computes prompts with Hotshoe."""
    from hotshoe import LLM, SamplingParams, TokensPrompt

    options: dict[str, object] = {"threads": 1} | ({} if isa == "best" else {"isa": isa})
    llm = LLM(
        file,
        platform="cpu",
        max_model_len=2048,
        max_num_seqs=SEQUENCES,
        kv_cache_memory_bytes=1 << 29,
        enable_prefix_caching=False,
        platform_options=options,
    )

    def compute(prompts: list[list[int]], num_tokens: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        llm.generate([TokensPrompt(ids) for ids in prompts], params)

    return compute


def llama_cpp(file: str) -> Any:
    """Return what computes prompts with llama.cpp."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = file
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_parallel, params.n_ctx = SEQUENCES, SEQUENCES * 1280
    server = xllamacpp.Server(params)

    def one(ids: list[int], num_tokens: int) -> None:
        server.handle_completions(
            {
                "prompt": ids,
                "n_predict": num_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "cache_prompt": False,
            }
        )

    def compute(prompts: list[list[int]], num_tokens: int) -> None:
        asking = [threading.Thread(target=one, args=(ids, num_tokens)) for ids in prompts]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()

    return compute


def serve(engine: str, file: str) -> None:
    """Compute what each line of the input asks for."""
    compute = llama_cpp(file) if engine == "llama.cpp" else hotshoe(file, engine)
    for line in itertools.chain(["[[[300, 301]], 2]"], sys.stdin):
        compute(*json.loads(line))
        print("done", flush=True)


def main() -> None:
    """Measure, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--isa", nargs="+", default=["best"])
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.file)
        return
    pythons = dict.fromkeys(args.isa, sys.executable) | (
        {"llama.cpp": args.peer} if args.peer else {}
    )
    children = {
        name: Child([python, __file__, args.file, "--serve", name])
        for name, python in pythons.items()
    }
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(args.rounds):
        for case, (count, size, num_tokens) in CASES.items():
            prompts = [random.choices(VOCABULARY, k=size) for _ in range(count)]
            for name in random.sample(list(children), len(children)):
                found[case, name].append(children[name].seconds(prompts, num_tokens))
    for (case, name), times in found.items():
        print(f"{case:20} {name:10} {statistics.median(times):8.4f} s of one core")
    for child in children.values():
        child.close()


if __name__ == "__main__":
    main()
