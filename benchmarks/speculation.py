"""Time one stream of the demo model with drafts and without, by turns, on text that repeats itself.

Run: python benchmarks/speculation.py [--num-turns N] [--num-speculative-tokens K]
"""

from __future__ import annotations

import argparse
import statistics
import time

from hotshoe import LLM, SamplingParams

REPETITIVE = "The list of files: alpha.txt, beta.txt, gamma.txt. " * 6
PLAIN = "Once upon a time, in a town by the sea, there lived"
LENGTH = 256


def seconds(llm: LLM, prompt: str) -> tuple[float, list[int]]:
    """Return how long an answer takes, and its tokens."""
    params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
    begin = time.perf_counter()
    [output] = llm.generate(prompt, params)
    return time.perf_counter() - begin, output.outputs[0].token_ids


def main() -> None:
    parser = argparse.ArgumentParser(description="Time drafts by turns with none.")
    parser.add_argument("--num-turns", type=int, default=7)
    parser.add_argument("--num-speculative-tokens", type=int, default=4)
    args = parser.parse_args()
    drafts = {"method": "ngram", "num_speculative_tokens": args.num_speculative_tokens}
    sizes = {"max_model_len": 1024, "max_num_seqs": 1}
    with LLM("demo", **sizes) as without, LLM("demo", speculative_config=drafts, **sizes) as with_:
        for name, prompt in (("repetitive", REPETITIVE), ("plain", PLAIN)):
            before = with_.stats()
            turns = [
                (seconds(without, prompt), seconds(with_, prompt)) for _ in range(args.num_turns)
            ]
            after = with_.stats()
            slow, fast = (statistics.median(t[i][0] for t in turns) for i in (0, 1))
            tried = after.num_draft_tokens - before.num_draft_tokens
            taken = after.num_accepted_tokens - before.num_accepted_tokens
            same = all(plain[1] == drafted[1] for plain, drafted in turns)
            print(
                f"{name}: {LENGTH / slow:.0f} tokens/s without, {LENGTH / fast:.0f} with "
                f"({slow / fast:.2f} times), {taken} of {tried} drafts accepted, "
                f"tokens {'equal' if same else 'differ by rounding'}"
            )


if __name__ == "__main__":
    main()
