"""Tokens a second with drafts that are right as often as is asked for, by turns with no drafts.

Run: python benchmarks/drafts.py benchmarks/models/llama-3.1-8b [--streams N ...] [--acceptance P]
     [FIELD=VALUE ...]

Dummy weights, and an output matrix of zeros, so that every answer repeats one token. A proposer
that knows it proposes it with probability P each, and else another, at no cost of its own. The
engine's budget says how many drafts there are. Prints medians, and the median of the turns' ratios.
FIELD=VALUE are fields of `EngineConfig`. Both engines share a device, so say there what each has
for its cache: kv_cache_memory_bytes=8000000000.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.config import EngineConfig
from hotshoe.plugins import HOOK_API, PluginManager, hookimpl
from hotshoe.plugins.manager import EntryPoint, installed_entry_points

OUTPUT = "lm_head.weight"


class Synthetic:
    """A proposer whose drafts are right with a set probability.

    Args:
        options: `acceptance`, and `token`, which every answer repeats.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._acceptance, self._token = float(options["acceptance"]), int(options["token"])
        self._random = random.Random(1234)

    def follow(self) -> Synthetic:
        """Start a sequence; all are alike."""
        return self

    def propose(self, token_ids: Sequence[int], limit: int) -> list[int]:
        """Return `limit` drafts."""
        draw = self._random.random
        return [self._token + (draw() >= self._acceptance) for _ in range(limit)]


class Plugin:
    """Offers the proposer as method `synthetic`."""

    HOTSHOE_HOOK_API = HOOK_API

    @hookimpl
    def hotshoe_proposers(self) -> Mapping[str, Any]:
        return {"synthetic": Synthetic}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("settings", nargs="*", metavar="FIELD=VALUE")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--acceptance", type=float, default=0.8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_intermixed_args()
    plugins = PluginManager(
        [*installed_entry_points(), EntryPoint("synthetic", "synthetic", "0", Plugin)]
    )
    engine = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": 1024,
        "max_num_seqs": max(args.streams),
        "enable_prefix_caching": False,
        **{key: yaml.safe_load(value) for key, value in (s.split("=", 1) for s in args.settings)},
    }
    told = json.loads(Path(args.model, "config.json").read_text())
    zeros = [(OUTPUT, torch.zeros(told["vocab_size"], told["hidden_size"]))]
    with LLM(config=EngineConfig(args.model, **engine), plugins=plugins) as plain:
        plain.update_weights(zeros)
        [answer] = plain.generate([TokensPrompt([1] * 8)], sampling(2))
        drafts = {"method": "synthetic", "acceptance": args.acceptance}
        drafts["token"] = answer.outputs[0].token_ids[-1]
        config = EngineConfig(args.model, speculative_config=drafts, **engine)
        with LLM(config=config, plugins=plugins) as drafted:
            drafted.update_weights(zeros)
            for streams in args.streams:
                compare(plain, drafted, streams, args.tokens, args.turns)


def compare(plain: LLM, drafted: LLM, streams: int, tokens: int, turns: int) -> None:
    """Time both by turns, the first of which warms up, and print the medians."""
    rates: list[tuple[float, float]] = []
    for turn in range(turns + 1):
        if turn == 1:
            before = drafted.stats()
        rates.append((rate(plain, streams, tokens), rate(drafted, streams, tokens)))
    after = drafted.stats()
    slow, fast = (statistics.median(turn[i] for turn in rates[1:]) for i in (0, 1))
    ratio = statistics.median(b / a for a, b in rates[1:])
    tried = after.num_draft_tokens - before.num_draft_tokens
    taken = after.num_accepted_tokens - before.num_accepted_tokens
    print(
        f"{streams} streams: {slow:.0f} tokens/s without, {fast:.0f} with, {ratio:.3f} times; "
        f"{taken} of {tried} drafts accepted",
        flush=True,
    )


def rate(llm: LLM, streams: int, tokens: int) -> float:
    """Return tokens a second over all streams."""
    prompts = [TokensPrompt([number % 1000 + 1] * 128) for number in range(streams)]
    begin = time.perf_counter()
    llm.generate(prompts, sampling(tokens))
    return streams * tokens / (time.perf_counter() - begin)


def sampling(tokens: int) -> SamplingParams:
    """Return parameters for exactly so many tokens."""
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)


if __name__ == "__main__":
    main()
