"""Tokens a second of streams over adapters, by turns with the same streams over the model alone.

Run: python benchmarks/adapters.py benchmarks/models/qwen3-0.6b [--streams N] [--adapters N]
     [--matrices q_proj,v_proj] [--requests N] [--registered N] [--vary] [FIELD=VALUE ...]

Dummy weights, and random adapters of every matrix of attention and MLP, or of those that are named.
With --registered, more adapters are loaded than the device holds, and in one more case each request
takes another one of them: so many requests as --requests says, of which --streams run at once. They
end together, or with --vary one by one. In the case before, adapters are there when a run begins.
Prints medians, and the median of the turns' ratios. FIELD=VALUE are fields of `EngineConfig`. Both
engines share a device, so say there what each has for its cache: kv_cache_memory_bytes=8000000000.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import yaml
from safetensors.torch import save_file

from hotshoe import LLM, SamplingParams, TokensPrompt

sys.path.insert(0, str(Path(__file__).parent))
from limits import Model, read_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("settings", nargs="*", metavar="FIELD=VALUE")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--matrices", default="", help="names, with commas; default: all")
    parser.add_argument("--requests", type=int, default=0, help="default: as many as streams")
    parser.add_argument("--vary", action="store_true", help="a half to three halves of --tokens")
    parser.add_argument("--registered", type=int, default=0, help="default: those of --adapters")
    parser.add_argument("--processor-time", action="store_true", help="where others share cores")
    args = parser.parse_intermixed_args()
    clock = time.process_time if args.processor_time else time.perf_counter
    engine = {
        "model": args.model,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": 256,
        "max_loras": args.adapters,
        "max_lora_rank": args.rank,
        "max_num_seqs": max(16, args.streams),
        **{key: yaml.safe_load(value) for key, value in (s.split("=", 1) for s in args.settings)},
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        LLM(**engine) as plain,
        LLM(**engine, enable_lora=True) as adapted,
    ):
        save(
            read_model(Path(args.model)),
            Path(folder),
            args.rank,
            args.matrices.split(",") if args.matrices else (),
        )
        registered, requests = max(args.registered, args.adapters), args.requests or args.streams
        begin = time.perf_counter()
        for number in range(registered):
            adapted.load_adapter(str(number), folder)
        print(f"{registered} adapters loaded in {time.perf_counter() - begin:.1f} s", flush=True)
        none, next_one = [None] * requests, itertools.count()
        held = [str(number % args.adapters) for number in range(requests)]
        cases = {
            "model alone": (plain, lambda: none),
            "adapters allowed, none used": (adapted, lambda: none),
            "adapters": (adapted, lambda: held),
        }
        if registered > args.adapters:
            cases["another adapter for each request"] = (
                adapted,
                lambda: [str(next(next_one) % registered) for _ in range(requests)],
            )
        rates: dict[str, list[float]] = {case: [] for case in cases}
        for _ in range(args.turns + 1):  # the first one warms up
            for case, (llm, choose) in cases.items():
                if case == "adapters":
                    rate(llm, held[: args.adapters], 1)
                rates[case].append(rate(llm, choose(), args.tokens, args.vary, clock))
        base = rates["model alone"][1:]
        for case, found in rates.items():
            ratio = statistics.median(a / b for a, b in zip(found[1:], base, strict=True))
            print(f"{case}: {statistics.median(found[1:]):.0f} tokens/s, {ratio:.3f} of the model")


def rate(
    llm: LLM,
    adapters: list[str | None],
    tokens: int,
    vary: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return tokens a second over all streams, whose lengths may differ evenly."""
    lengths = [
        tokens // 2 + 37 * i % (tokens + 1) if vary else tokens for i in range(len(adapters))
    ]
    prompts = [TokensPrompt([number + 1] * 8) for number in range(len(adapters))]
    params = [
        SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, adapter=name)
        for name, length in zip(adapters, lengths, strict=True)
    ]
    begin = clock()
    llm.generate(prompts, params)
    return sum(lengths) / (clock() - begin)


def save(model: Model, folder: Path, rank: int, matrices: Sequence[str]) -> None:
    """Write an adapter of matrices, of all if none is named, with small random factors."""
    tensors = {}
    for layer in range(model.layers):
        for name, (out, width) in model.matrices.items():
            if matrices and name.split(".")[-1] not in matrices:
                continue
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            for half, shape in (("A", (rank, width)), ("B", (out, rank))):
                values = (0.01 * torch.randn(shape)).bfloat16()
                tensors[f"{prefix}.lora_{half}.weight"] = values
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, "lora_alpha": rank}))


if __name__ == "__main__":
    main()
