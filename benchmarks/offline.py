"""Runs Hotshoe through the cases by which peers are measured, in one process.

    python benchmarks/offline.py CASES_DIR MODEL CASES [FIELD=VALUE ...]

CASES_DIR holds `common.py`, which defines the cases (`run_cases`) for all engines alike: a one
stream 128/128, b prefill of 1,024, c 32 requests 256/64, d 16 requests sharing 1,024 tokens.
FIELD=VALUE are fields of `EngineConfig`. Rows are appended to $PEERS/results.jsonl by `common.py`.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

#: Holds the largest case, and little more: see `touch_cache`.
KV_CACHE_BYTES = 1200 << 20
Generate = Callable[[list[list[int]], int], tuple[float, int]]


def make_generate(model_dir: str, options: dict[str, Any]) -> Generate:
    """Load the model and return a function from prompts and output length to (seconds, tokens)."""
    from hotshoe import LLM, SamplingParams, TokensPrompt

    defaults = {
        "dtype": "bfloat16",
        "max_model_len": 2048,
        "max_num_seqs": 32,
        "kv_cache_memory_bytes": KV_CACHE_BYTES,
    }
    llm = LLM(model_dir, **{**defaults, **options})

    def generate(prompts: list[list[int]], num_tokens: int) -> tuple[float, int]:
        params = SamplingParams(
            temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False
        )
        begin = time.perf_counter()
        outputs = llm.generate([TokensPrompt(p) for p in prompts], params)
        seconds = time.perf_counter() - begin
        return seconds, sum(len(o.outputs[0].token_ids) for o in outputs)

    return generate


def touch_cache(generate: Generate, prompt: Callable[[int, int], list[int]]) -> None:
    """Use the whole cache once, as an engine that has served for a while has.

    Peers touch their cache's memory when they start, Hotshoe when tokens first come to lie there,
    for which a virtual machine may have to fetch every page from its host.
    """
    generate([prompt(336, seed) for seed in range(32)], 1)


def main() -> None:
    started = time.monotonic()
    cases_dir, model, cases, *settings = sys.argv[1:]
    options = {k: yaml.safe_load(v) for k, v in (s.split("=", 1) for s in settings)}
    sys.path.insert(0, str(Path(cases_dir)))
    import common

    rss = common.TreeRSS()
    generate = make_generate(common.MODELS[model], options)
    generate([common.prompt(16, 1)], 1)
    first_token = time.monotonic() - started
    name = "hotshoe" + "".join(f"-{v}" for v in options.values() if isinstance(v, str))
    common.emit(name, model, "e_start", {"first_token_from_process_start_s": first_token})
    touch_cache(generate, common.prompt)
    common.run_cases(name, model, generate, cases)
    common.emit(name, model, "rss", {"tree_rss_mb": rss.peak / 2**20})


if __name__ == "__main__":
    main()
