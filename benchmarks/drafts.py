"""Tokens a second with drafts that are right as often as is asked for, by turns with no drafts.

Run: python benchmarks/drafts.py benchmarks/models/llama-3.1-8b [--streams N ...] [--acceptance P]
     [--head eagle3] [--tree TREE --second P] [FIELD=VALUE ...]

Dummy weights, and an output matrix of zeros, so that every answer repeats one token. A proposer
that knows it proposes it with probability P each, and else another, at no cost of its own. With
--head a head of one layer and random weights computes drafts first, which are then replaced by such
ones. The engine's budget says how many drafts there are. With --tree they are a tree: where the
first choice at a place is wrong, the second is right with another probability, and no further one.

Prints medians, and the median of the turns' ratios: of whole turns, and of the time in which all
streams run and have their first token. In that time no stream has ended early by drafts.
FIELD=VALUE are fields of `EngineConfig`. Both engines share a device, so say there what each has
for its cache: kv_cache_memory_bytes=8000000000.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
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
from hotshoe.types.trees import TREE, DraftTree, parse_tree

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


class SyntheticTree(Synthetic):
    """The same of trees: nodes off the path that is right, and further choices, are wrong.

    Args:
        options: As above, and `second`, the probability for second choices.
        tree: The shape.
    """

    def __init__(self, options: Mapping[str, Any], tree: DraftTree) -> None:
        super().__init__(options)
        self._second, self._paths = float(options["second"]), tree.paths

    def propose(self, token_ids: Sequence[int], limit: int) -> list[int]:
        """Return the first `limit` nodes."""
        found, right = list[int](), {(): self._drawn()}  # of each right node, its right choice
        for path in self._paths[:limit]:
            is_right = right.get(path[:-1]) == path[-1]
            found.append(self._token if is_right else self._token + 1 + path[-1])
            if is_right:
                right[path] = self._drawn()
        return found

    def _drawn(self) -> int:
        """Draw which choice is right; -1 for none."""
        draw = self._random.random
        return 0 if draw() < self._acceptance else 1 if draw() < self._second else -1


class Replaced:
    """Drafts of a head, in the place of which synthetic ones are handed on."""

    def __init__(self, drafter: Any, synthetic: Synthetic) -> None:
        self._drafter, self._synthetic = drafter, synthetic

    def propose(self, wanted: Sequence[Any]) -> list[list[int]]:
        """Return as many drafts as the head has made."""
        made = self._drafter.propose(wanted)
        return [self._synthetic.propose((), len(drafts)) for drafts in made]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)


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
    parser.add_argument("--head", choices=["eagle", "eagle3"], help="a head's price is part of it")
    parser.add_argument("--tree", help="a tree of drafts, as speculative_token_tree; with --head")
    parser.add_argument("--second", type=float, default=0.5)
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
    with (
        tempfile.TemporaryDirectory() as folder,
        LLM(config=EngineConfig(args.model, **engine), plugins=plugins) as plain,
    ):
        plain.update_weights(zeros)
        [answer] = plain.generate([TokensPrompt([1] * 8)], sampling(2))
        options = {"acceptance": args.acceptance, "token": answer.outputs[0].token_ids[-1]}
        made = Synthetic(options)
        drafts = {"method": "synthetic", **options}
        if args.head is not None:
            write_head(Path(folder), told)
            drafts = {"method": args.head, "model": folder}
        if args.tree is not None:
            drafts[TREE] = args.tree
            made = SyntheticTree({**options, "second": args.second}, parse_tree(args.tree))
        config = EngineConfig(args.model, speculative_config=drafts, **engine)
        with LLM(config=config, plugins=plugins) as drafted:
            drafted.update_weights(zeros)
            if args.head is not None:
                drafting = drafted.engine.core._drafting
                drafting._drafter = Replaced(drafting._drafter, made)
            for streams in args.streams:
                compare(plain, drafted, streams, args.tokens, args.turns)


def write_head(path: Path, model: Mapping[str, Any]) -> None:
    """Write what describes a head of one layer with the model's sizes."""
    own = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
    values = {**model, **own, "draft_vocab_size": min(32000, model["vocab_size"])}
    (path / "config.json").write_text(json.dumps(values))


def compare(plain: LLM, drafted: LLM, streams: int, tokens: int, turns: int) -> None:
    """Time both by turns, the first of which warms up, and print the medians."""
    found: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for turn in range(turns + 1):
        if turn == 1:
            before = drafted.stats()
        found.append((rates(plain, streams, tokens), rates(drafted, streams, tokens)))
    after = drafted.stats()
    tried = after.num_draft_tokens - before.num_draft_tokens
    taken = after.num_accepted_tokens - before.num_accepted_tokens
    print(f"{streams} streams: {taken} of {tried} drafts accepted")
    for kind, name in enumerate(("whole turns", "all streams running")):
        pairs = [(a[kind], b[kind]) for a, b in found[1:]]
        slow, fast = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
        each = [b / a for a, b in pairs]
        print(
            f"  {name}: {slow:.0f} tokens/s without, {fast:.0f} with, "
            f"{statistics.median(each):.3f} times ({min(each):.3f} to {max(each):.3f})",
            flush=True,
        )


def rates(llm: LLM, streams: int, tokens: int) -> tuple[float, float]:
    """Return tokens a second of a whole turn, and of the time in which all streams decode."""
    prompts = [TokensPrompt([number % 1000 + 1] * 128) for number in range(streams)]
    engine = llm.engine
    begin = time.perf_counter()
    for number, prompt in enumerate(prompts):
        engine.add(str(number), prompt, sampling(tokens))
    begun: set[str] = set()
    ended = 0
    first = last = (begin, llm.stats().num_generated_tokens)
    while engine.has_work():
        for update in engine.step():
            begun.add(update.request_id)
            ended += update.finished
        now = (time.perf_counter(), llm.stats().num_generated_tokens)
        if len(begun) < streams:
            first = now
        if not ended:
            last = now
    whole = streams * tokens / (now[0] - begin)
    return whole, (last[1] - first[1]) / (last[0] - first[0])


def sampling(tokens: int) -> SamplingParams:
    """Return parameters for exactly so many tokens."""
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)


if __name__ == "__main__":
    main()
