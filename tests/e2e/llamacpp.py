"""Prints the perplexity of texts by llama.cpp.

    python tests/e2e/llamacpp.py MODEL.gguf TOKENS.json

A program of its own, for an environment that has llama-cpp-python. TOKENS.json has lists of
token ids, all of one length; the first token of each is not counted.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
from llama_cpp import Llama


def main() -> None:
    texts = json.loads(Path(sys.argv[2]).read_text())
    length = len(texts[0])
    model = Llama(sys.argv[1], n_ctx=length, n_batch=length, logits_all=True, verbose=False)
    total = 0.0
    for text in texts:
        model.reset()
        model.eval(text)
        logits = model.scores[: length - 1].astype(np.float64)
        top = logits.max(1)
        sums = top + np.log(np.exp(logits - top[:, None]).sum(1))
        total += (sums - logits[np.arange(length - 1), text[1:]]).sum()
    print(math.exp(total / (len(texts) * (length - 1))))


if __name__ == "__main__":
    main()
