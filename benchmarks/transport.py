"""Measures what the engine's transport costs: in-process thread against a process of its own.

    python benchmarks/transport.py --model demo --platform cpu --concurrency 1 32

Prints medians over rounds: tokens per second, and milliseconds per token of each request. Offline
is `LLM.generate`: no threads, no asyncio.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable

from hotshoe import LLM, AsyncEngine, EngineConfig, SamplingParams, TokensPrompt


def prompt(start: int) -> TokensPrompt:
    """Return a short prompt that no other request has."""
    return TokensPrompt([start] * 16)


async def one(engine: AsyncEngine, start: int, params: SamplingParams) -> None:
    """Stream one request to its end."""
    async for _ in engine.generate(prompt(start), params):
        pass


async def batch(engine: AsyncEngine, starts: range, params: SamplingParams) -> None:
    """Run requests together to their end."""
    await asyncio.gather(*(one(engine, start, params) for start in starts))


def main() -> None:
    """Measure every transport, in turns, so that all meet the same neighbors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--platform", default="cpu")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 32])
    args = parser.parse_args()
    config = EngineConfig(model=args.model, platform=args.platform)
    params = SamplingParams(temperature=0.0, max_tokens=args.tokens, ignore_eos=True)
    llm = LLM(config=config)
    engines = {t: AsyncEngine(config, transport=t) for t in ("thread", "process")}
    runs: dict[str, Callable[[range], object]] = {
        "offline": lambda starts: llm.generate([prompt(i) for i in starts], params),
        **{
            t: lambda starts, e=e: asyncio.run(batch(e, starts, params)) for t, e in engines.items()
        },
    }
    for concurrency in args.concurrency:
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(args.rounds + 1):
            for name, run in runs.items():
                begin = time.perf_counter()
                run(range(10 + number * concurrency, 10 + (number + 1) * concurrency))
                seconds[name].append(time.perf_counter() - begin)
        for name, found in seconds.items():
            middle, best = statistics.median(found[1:]), min(found[1:])
            print(
                f"{name:8s} concurrency {concurrency:3d}: "
                f"{args.tokens * concurrency / middle:9.0f} tokens/s, "
                f"{1e3 * middle / args.tokens:7.3f} ms/token (best {1e3 * best / args.tokens:.3f})",
                flush=True,
            )
    llm.close()
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
