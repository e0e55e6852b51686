"""Prepare the data of the bundled demo model, train it, measure it, and put it into the plugin.

    python tools/train_demo.py                 # everything, needs Debian's apt-get and torch
    python tools/train_demo.py --prepare-only  # the CPU part, which fetches packages
    python tools/train_demo.py --train         # the accelerator part, from what was prepared
    python tools/train_demo.py --evaluate      # measure the checkpoint in --output again

Seeds are fixed; the same packages give the same data, and the same accelerator and library
versions give a model of the same quality.
"""

import argparse
import dataclasses
import json
import os
import shutil
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "plugins" / "demo")]

from demo_data.prepare import Prepared, prepare  # noqa: E402

PACKAGE = ROOT / "plugins" / "demo" / "hotshoe_demo"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    stage = parser.add_mutually_exclusive_group()
    stage.add_argument("--prepare-only", action="store_true", help="stop after the data")
    stage.add_argument("--train", action="store_true", help="use data prepared before")
    stage.add_argument("--evaluate", action="store_true", help="only measure the checkpoint")
    parser.add_argument("--cache", type=Path, default=ROOT / ".demo-data", help="packages, data")
    parser.add_argument("--output", type=Path, default=PACKAGE, help="plugin package to write to")
    parser.add_argument("--device", default="auto", help="torch device, default: the best there is")
    parser.add_argument("--steps", type=int, help="optimizer steps, for trials")
    parser.add_argument("--rows", type=int, help="rows in a batch, for trials")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    return parser.parse_args()


def train_and_export(arguments: argparse.Namespace, prepared: Prepared) -> dict[str, object]:
    """Train and write the checkpoint; return what evaluation.json says about the run."""
    import torch
    from demo_train.batches import Plan
    from demo_train.export import export
    from demo_train.loop import train

    plan = Plan()
    if arguments.steps:
        plan = dataclasses.replace(plan, steps=arguments.steps)
    if arguments.rows:
        text_rows = max(1, arguments.rows * plan.text_rows // plan.rows)
        plan = dataclasses.replace(plan, rows=arguments.rows, text_rows=text_rows)
    device = torch.device(choose_device(arguments.device))
    started = time.perf_counter()
    network = train(prepared, plan, device, arguments.workers)
    export(network, prepared, arguments.output / "model")
    held_out = arguments.output / "heldout"
    held_out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(prepared.folder / "cases.jsonl", held_out / "cases.jsonl")
    shutil.copyfile(prepared.folder / "heldout.txt", held_out / "text.txt")
    name = torch.get_device_module(device).get_device_name() if device.type != "cpu" else "cpu"
    return {
        "steps": plan.steps,
        "tokens": plan.steps * plan.rows * plan.length,
        "seconds": round(time.perf_counter() - started),
        "device": name,
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in network.parameters()),
    }


def choose_device(name: str) -> str:
    """Resolve `auto` to the accelerator that torch sees, or to the CPU."""
    import torch

    if name != "auto":
        return name
    accelerator = torch.accelerator.current_accelerator()
    return accelerator.type if accelerator else "cpu"


def measure(arguments: argparse.Namespace, training: object) -> None:
    """Evaluate the checkpoint, print the numbers, write evaluation.json and the failures."""
    import torch
    from demo_train.evaluate import evaluate, read_cases

    held_out = arguments.output / "heldout"
    cases, text = read_cases(held_out / "cases.jsonl"), (held_out / "text.txt").read_text()
    device = torch.device(choose_device(arguments.device))
    numbers, failed = evaluate(arguments.output / "model", cases, text, device)
    numbers["training"] = training
    content = json.dumps(numbers, indent=2) + "\n"
    (arguments.output / "model" / "evaluation.json").write_text(content)
    lines = "".join(json.dumps(case, ensure_ascii=False) + "\n" for case in failed)
    (arguments.cache / "failed.jsonl").write_text(lines)
    print(content, flush=True)


def main() -> None:
    """Run the stages asked for."""
    arguments = parse()
    prepared = Prepared(arguments.cache / "prepared")
    recorded = arguments.output / "model" / "evaluation.json"
    training: object = json.loads(recorded.read_text())["training"] if recorded.exists() else None
    if not (arguments.train or arguments.evaluate):
        prepared = prepare(arguments.cache, prepared.folder)
    if arguments.prepare_only:
        return
    if not arguments.evaluate:
        training = train_and_export(arguments, prepared)
    measure(arguments, training)


if __name__ == "__main__":
    main()
