"""Times what a server of several models waits for: sleep, wake, a switch, a second start.

    python benchmarks/rest.py [--model NAME] [--cases sleep,switch,start] [--rounds N]
                              [FIELD=VALUE ...]

NAME is a folder of `benchmarks/models`, by default Llama-3.1-8B, with dummy weights. Times are
seconds, one for each round. sleep: sleep at level 1, and wake, with the first token and without;
switch: two engines, of which one goes to sleep and the other one wakes and answers; start: from the
start of `hotshoe generate` to its first token, with a checkpoint of random weights, as Llama names
them, that `hotshoe preload` keeps.
FIELD=VALUE are fields of `EngineConfig`. Engines share a device, so say there how much memory each
has for its cache: kv_cache_memory_bytes=8000000000.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))
from gpu import DEFAULTS, MODELS
from limits import read_model

FIXED = {"skip_tokenizer_init": True, "max_num_seqs": 256}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", metavar="FIELD=VALUE")
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--cases", default="sleep,switch,start")
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    options = {k: yaml.safe_load(v) for k, v in (s.split("=", 1) for s in args.settings)}
    engine = {"model": str(MODELS / args.model), **DEFAULTS, **FIXED, **options}
    cases = {
        "sleep": lambda: sleep(engine, args.rounds),
        "switch": lambda: switch(engine, args.rounds),
        "start": lambda: start(MODELS / args.model, options, args.rounds),
    }
    for name in args.cases.split(","):
        cases[name]()


def seconds(run: Callable[[], Any]) -> float:
    """Return how long it takes."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def report(what: str, values: list[float]) -> None:
    """Print all values, and the median of all but the first."""
    listed = " ".join(f"{value:.3f}" for value in values)
    print(f"{what:34} {statistics.median(values[1:]):8.3f} s   ({listed})", flush=True)


def first_token(llm: Any) -> None:
    from hotshoe import SamplingParams, TokensPrompt

    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    llm.generate([TokensPrompt(list(range(10, 26)))], params)


def sleep(engine: dict[str, Any], rounds: int) -> None:
    from hotshoe import LLM

    times: dict[str, list[float]] = {"sleep": [], "wake": [], "wake, to the first token": []}
    with LLM(**engine) as llm:
        first_token(llm)
        for _ in range(rounds):
            times["sleep"].append(seconds(llm.sleep))
            times["wake"].append(seconds(llm.wake_up))
            token = seconds(lambda: first_token(llm))
            times["wake, to the first token"].append(times["wake"][-1] + token)
    for what, values in times.items():
        report(what, values)


def switch(engine: dict[str, Any], rounds: int) -> None:
    from hotshoe import LLM

    def once(away: Any, here: Any) -> None:
        away.sleep()
        here.wake_up()
        first_token(here)

    with LLM(**engine) as one:
        first_token(one)
        one.sleep()
        with LLM(**engine) as two:
            first_token(two)
            pairs = [(two, one), (one, two)] * rounds
            times = [seconds(lambda a=a, b=b: once(a, b)) for a, b in pairs]
    report("switch, to the first token", times)


def start(model: Path, options: dict[str, Any], rounds: int) -> None:
    """Time `hotshoe generate` while a keeper keeps files alone, then with imports."""
    from hotshoe.cli.bench.startup import command_line, measure

    with tempfile.TemporaryDirectory() as folder:
        checkpoint, config = Path(folder, "checkpoint"), Path(folder, "config.yaml")
        write(model, checkpoint)
        fixed = {"model": str(checkpoint), "max_num_seqs": FIXED["max_num_seqs"]}
        config.write_text(
            yaml.safe_dump({**DEFAULTS, "load_format": "safetensors", **fixed, **options})
        )
        command = command_line(str(config))
        print(measure(command)["first_token_s"])  # compiles, and reads files for the first time
        named = ["--platform", str(options.get("platform", "auto"))]
        for what, flags in (("files alone are kept", ["--no-imports"]), ("imports, too", named)):
            with keeping(checkpoint, flags):
                runs = [measure(command) for _ in range(rounds)]
            report(f"start, {what}", [run["first_token_s"] for run in runs])
            phases = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
            print("  " + ", ".join(f"{k} {v:.2f}" for k, v in phases.items()), flush=True)


@contextmanager
def keeping(checkpoint: Path, flags: list[str]) -> Iterator[None]:
    """Keep a checkpoint."""
    command = [sys.executable, "-m", "hotshoe.cli", "preload", str(checkpoint), *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    keeper = subprocess.Popen(command, text=True, **pipes)
    try:
        assert keeper.stdout is not None
        said = []
        while "are kept" not in (line := keeper.stdout.readline()):
            said.append(line)
            if not line:
                raise SystemExit("hotshoe preload has ended:\n" + "".join(said))
        print(*(f"  {text.strip()}" for text in said[-2:]), sep="\n", flush=True)
        yield
    finally:
        keeper.terminate()
        keeper.wait()


def write(model: Path, folder: Path) -> None:
    """Write a checkpoint of random weights, a file for each layer, with some tokenizer."""
    import torch
    from safetensors.torch import save_file

    import hotshoe_demo

    folder.mkdir()
    shutil.copy(model / "config.json", folder)
    shutil.copy(Path(hotshoe_demo.__file__).parent / "model/tokenizer.json", folder)
    config, sizes = json.loads((model / "config.json").read_text()), read_model(model)
    hidden = sizes.hidden
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def drawn(*shape: int) -> torch.Tensor:
        return (0.02 * torch.randn(shape, device=device)).bfloat16().cpu()

    vocabulary = (sizes.vocab, hidden)
    ends = {"model.embed_tokens.weight": drawn(*vocabulary), "model.norm.weight": drawn(hidden)}
    if not config.get("tie_word_embeddings"):
        ends["lm_head.weight"] = drawn(*vocabulary)
    save_file(ends, folder / "ends.safetensors")
    norms = dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (hidden,))
    for layer in range(sizes.layers):
        shapes = {**sizes.matrices, **norms}
        tensors = {f"model.layers.{layer}.{n}.weight": drawn(*s) for n, s in shapes.items()}
        save_file(tensors, folder / f"layer-{layer}.safetensors")


if __name__ == "__main__":
    main()
