"""Time answers of the demo model with drafts and without, by turns, one stream and many.

Run: python benchmarks/speculation.py [--num-streams N ...] [--texts NAME ...]
     [--speculative-config JSON]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import TypeAlias

from hotshoe import LLM, SamplingParams

#: The begin of a file whose functions are much alike, as edited code is.
CODE = """# Settings {} of the editor.


def read_width(settings):
    value = settings.get("width")
    if value is None:
        return DEFAULTS["width"]
    return int(value)


def read_height(settings):
    value = settings.get("height")
    if value is None:
        return DEFAULTS["height"]
    return int(value)


def read_depth(settings):
"""
STORY = "Once upon {} time, in a town by the sea, there lived"
#: Streams and turns differ by a word and by seed, so that no answer is that of an earlier turn.
#: Drawn tokens repeat nothing, so that drafts are seldom right.
TEXTS = {
    "code": (CODE, 0.0),
    "repetitive": ("The list {} of files: alpha.txt, beta.txt, gamma.txt. " * 6, 0.0),
    "story": (STORY, 0.0),
    "drawn": (STORY, 1.5),
}
LENGTH = 256


Turn: TypeAlias = tuple[float, float, list[list[int]]]


def seconds(llm: LLM, prompts: list[str], temperature: float, seed: int) -> Turn:
    """Return how long the answers take, the processor's time for them, and their tokens."""
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=LENGTH, ignore_eos=True)
    begin, busy = time.perf_counter(), time.process_time()
    outputs = llm.generate(prompts, params)
    tokens = [output.outputs[0].token_ids for output in outputs]
    return time.perf_counter() - begin, time.process_time() - busy, tokens


def compare(without: LLM, with_: LLM, name: str, num_streams: int, num_turns: int) -> None:
    """Time both by turns and print the medians."""
    text, heat = TEXTS[name]
    before = with_.stats()
    turns = []
    for turn in range(num_turns):
        numbers = range(turn * num_streams, (turn + 1) * num_streams)
        prompts = [text.replace("{}", str(number)) for number in numbers]
        turns.append([seconds(llm, prompts, heat, turn) for llm in (without, with_)])
    after = with_.stats()
    slow, fast = (statistics.median(turn[i][0] for turn in turns) for i in (0, 1))
    more, less = (statistics.median(turn[i][1] for turn in turns) for i in (0, 1))
    tried = after.num_draft_tokens - before.num_draft_tokens
    taken = after.num_accepted_tokens - before.num_accepted_tokens
    same = all(plain[2] == drafted[2] for plain, drafted in turns)
    total = LENGTH * num_streams
    print(
        f"{name}, {num_streams} streams: {total / slow:.0f} tokens/s without, "
        f"{total / fast:.0f} with ({slow / fast:.2f} times; {more / less:.2f} by "
        f"processor time), {taken} of {tried} drafts accepted, "
        f"tokens {'equal' if same else 'differ by rounding'}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Time drafts by turns with none.")
    parser.add_argument("--num-turns", type=int, default=7)
    parser.add_argument("--num-streams", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--texts", nargs="+", default=list(TEXTS), choices=TEXTS)
    parser.add_argument("--speculative-config", type=json.loads, default={"method": "auto"})
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args()
    sizes = {"max_model_len": 1024, "max_num_seqs": max(args.num_streams), "dtype": args.dtype}
    drafts = {"speculative_config": args.speculative_config}
    with LLM("demo", **sizes) as without, LLM("demo", **sizes, **drafts) as with_:
        for num_streams in args.num_streams:
            for name in args.texts:
                compare(without, with_, name, num_streams, args.num_turns)


if __name__ == "__main__":
    main()
