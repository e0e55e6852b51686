"""The demo model's perplexity on held-out text, through the whole engine.

    python -m tests.platforms.cuda.perplexity cpu

prints the number that tests compare a GPU's with.
"""

import math
import sys

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe_demo import heldout

WINDOW = 512


def perplexity(platform: str, **options: object) -> float:
    """Return exp of the mean negative log probability over windows of WINDOW tokens."""
    llm = LLM("demo", platform=platform, max_model_len=WINDOW + 1, max_num_seqs=8, **options)
    try:
        ids = llm.tokenizer.encode(heldout.text())
        windows = [ids[i : i + WINDOW] for i in range(0, len(ids) - WINDOW, WINDOW)]
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        results = llm.generate([TokensPrompt(w) for w in windows], params)
    finally:
        llm.close()
    found = [entry.logprobs[0] for r in results for entry in r.prompt_logprobs if entry]
    assert len(found) == len(windows) * (WINDOW - 1)
    return math.exp(-sum(found) / len(found))


if __name__ == "__main__":
    for dtype in ("bfloat16", "float32"):
        print(dtype, perplexity(sys.argv[1], dtype=dtype))
