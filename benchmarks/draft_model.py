"""Time a deepened demo model with the demo model as its draft model, by turns with no drafts.

The deeper model has more layers behind those of the demo model: copies whose outputs are scaled
down, so that both models agree as often as the scale says. It says nothing better; it costs more.

Run: python benchmarks/draft_model.py [--extra-layers N] [--scale X] [--num-streams N ...]
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
from pathlib import Path

from safetensors.torch import load_file, save_file
from speculation import TEXTS, compare

import hotshoe_demo
from hotshoe import LLM

DEMO = Path(hotshoe_demo.__file__).parent / "model"
LAYER = re.compile(r"model\.layers\.(\d+)\.(.*)")
#: What a layer adds to its input goes through these.
OUTPUTS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


def deepen(path: Path, extra: int, scale: float) -> None:
    """Write the demo model with more layers into a new directory."""
    shutil.copytree(DEMO, path)
    config = json.loads((path / "config.json").read_text())
    count = config["num_hidden_layers"]
    config["num_hidden_layers"] = count + extra
    (path / "config.json").write_text(json.dumps(config))
    tensors = load_file(DEMO / "model.safetensors")
    for name, tensor in list(tensors.items()):
        if not (found := LAYER.fullmatch(name)):
            continue
        number, rest = int(found[1]), found[2]
        for layer in range(count + number, count + extra, count):
            copy = tensor * scale if rest in OUTPUTS else tensor.clone()
            tensors[f"model.layers.{layer}.{rest}"] = copy
    save_file(tensors, path / "model.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a draft model by turns with none.")
    parser.add_argument("--extra-layers", type=int, default=45)
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--num-turns", type=int, default=3)
    parser.add_argument("--num-streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--num-speculative-tokens", type=int)
    parser.add_argument("--texts", nargs="+", default=list(TEXTS), choices=list(TEXTS))
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args()
    sizes = {"max_model_len": 1024, "max_num_seqs": max(args.num_streams), "dtype": args.dtype}
    draft = {"method": "draft_model", "model": str(DEMO)}
    if args.num_speculative_tokens:
        draft |= {"num_speculative_tokens": args.num_speculative_tokens, "adaptive": False}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "deep"
        deepen(path, args.extra_layers, args.scale)
        with (
            LLM(str(path), **sizes) as without,
            LLM(str(path), speculative_config=draft, **sizes) as with_,
        ):
            for num_streams in args.num_streams:
                for name in args.texts:
                    compare(without, with_, name, num_streams, args.num_turns)


if __name__ == "__main__":
    main()
