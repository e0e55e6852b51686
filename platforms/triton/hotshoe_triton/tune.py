"""`hotshoe tune PLATFORM`: measures configurations of the streaming matrix products on this GPU.

For every shape that a model's layers ask for and every bucket of rows, a seeded sample of the
search space is timed, then the neighbors of the best. Weights rotate, so that none is read from
the cache. The result is a JSON file by device; entries that it has already are kept, so that an
interrupted run goes on where it ended.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, fields, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.cli.options import add_engine_flags, engine_config
from hotshoe.errors import ConfigError, PlatformError
from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, NormSpec
from hotshoe_triton import tuned
from hotshoe_triton.library import Linear
from hotshoe_triton.pool import end_with_parent
from hotshoe_triton.tuning import BUCKETS, LIBRARY, LinearConfig, default, itemsize_of

if TYPE_CHECKING:
    from torch import Tensor

#: Bytes of weight copies that are read in turn; several times any GPU's cache.
ROTATED_BYTES = 768 << 20
#: Products of many rows are repeated so long before they are timed: by then the GPU has lowered its
#: clocks as far as it does for them.
HEAT_S = 1.0
#: A tuned kernel must beat the library by this much to replace it.
MARGIN = 0.005


class Tune:
    """See `hotshoe.cli.command.Command`.

    Args:
        platform: The platform's name.
        linear: Its operation.
    """

    def __init__(self, platform: str, linear: type[Linear]) -> None:
        self._platform, self._linear = platform, linear

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_engine_flags(parser)
        add = parser.add_argument
        add("--output", type=Path, metavar="FILE", help="file to extend; default: the shipped one")
        add(
            "--trials",
            type=at_least_one,
            metavar="N",
            default=40,
            help="sample of each search (default: 40)",
        )
        buckets = self._linear.buckets
        text = f"numbers of rows (default: {' '.join(map(str, buckets))})"
        add("--buckets", type=one_of(buckets), metavar="N", nargs="+", default=buckets, help=text)
        text = "processes that compile (default: 8)"
        add("--jobs", type=at_least_one, metavar="N", default=8, help=text)
        add("--again", action="store_true", help="tune what is tuned already too")

    def run(self, args: Namespace) -> int:
        from hotshoe.engine.explain.explanation import explain

        config = engine_config(args)
        if config.platform not in ("auto", self._platform):
            raise ConfigError(
                f"`tune {self._platform}` measures on platform {self._platform}, not on "
                f"{config.platform}; leave --platform out"
            )
        explanation = explain(replace(config, platform=self._platform))
        facts = explanation.facts
        specs = [d.spec for d in explanation.decisions if d.slot == "linear"]
        path = args.output or tuned.path_of(self._linear.folder, facts)
        table = tuned.read(path)
        self._write(path, table)  # found out before anything is measured
        with ProcessPoolExecutor(args.jobs, get_context("spawn"), end_with_parent) as pool:
            for spec, bucket in itertools.product(specs, args.buckets):
                key = tuned.key_of(spec, bucket)
                if key in table and not args.again:
                    continue
                begin = time.perf_counter()
                try:
                    found = Search(self._linear, spec, facts, bucket, pool).best(args.trials)
                except BrokenProcessPool:
                    raise PlatformError(
                        f"a process that compiles for {key} was ended, as for want of memory; "
                        f"lower --jobs from {args.jobs} and go on: what was measured is kept"
                    ) from None
                table[key] = {**asdict(found[1]), "us": round(found[0] * 1e6, 2)}
                self._write(path, table)
                seconds = time.perf_counter() - begin
                rate = weight_bytes(spec) / found[0] / 1e12
                print(
                    f"{key:40} {found[0] * 1e6:8.2f} us {rate:5.2f} TB/s {seconds:5.1f} s", end=""
                )
                print(f"  {found[1]}", flush=True)
        print(f"{len(table)} entries in {path}")
        return 0

    def _write(self, path: Path, table: tuned.Entries) -> None:
        try:
            tuned.write(path, table)
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written ({error.strerror}); name another file by --output"
            ) from None


def whole(word: str) -> int:
    """Read a number from the command line."""
    try:
        return int(word)
    except ValueError:
        raise ArgumentTypeError(f"{word!r} is no whole number") from None


def at_least_one(word: str) -> int:
    """Read a count from the command line."""
    count = whole(word)
    if count < 1:
        raise ArgumentTypeError(f"{count} is less than 1")
    return count


def one_of(buckets: Sequence[int]) -> Callable[[str], int]:
    """Return what reads a number of rows that configurations are made for."""

    def bucket(word: str) -> int:
        number = whole(word)
        if number not in buckets:
            raise ArgumentTypeError(f"{word} is not one of {', '.join(map(str, buckets))}")
        return number

    return bucket


def weight_bytes(spec: LinearSpec) -> int:
    """Return the bytes that a product must read at least."""
    return spec.in_features * spec.out_features * itemsize_of(spec)


class Search:
    """Finds the fastest configuration of one product for one bucket of rows.

    Args:
        linear: The platform's operation.
        spec: The product.
        facts: The device.
        bucket: Rows of x.
        pool: Processes that compile.
    """

    def __init__(
        self,
        linear: type[Linear],
        spec: LinearSpec,
        facts: DeviceFacts,
        bucket: int,
        pool: ProcessPoolExecutor,
    ) -> None:
        self._linear = linear
        self._spec, self._facts, self._bucket, self._pool = spec, facts, bucket, pool
        self._many = bucket > BUCKETS[-1]
        self._seconds: dict[LinearConfig, float] = {}

    def best(self, trials: int) -> tuple[float, LinearConfig]:
        """Return seconds and configuration.

        Raises:
            PlatformError: Not one could be run.
        """
        spec = self._spec
        shape = (self._bucket, spec.out_features, spec.in_features, itemsize_of(spec))
        space = list(self._linear.configs(self._bucket, self._spec, self._facts))
        sample = list(_sample(space, trials))
        known = [] if self._many else [default(*shape, self._facts)]
        self._measure([LIBRARY, *known, *sample])
        for _ in range(3):
            best = min(self._seconds, key=self._seconds.__getitem__)
            self._measure(c for c in space if _distance(c, best) == 1)
        seconds, library = min(self._seconds.values()), self._seconds[LIBRARY]
        if seconds == float("inf"):
            raise PlatformError(
                f"no configuration of {tuned.key_of(self._spec, self._bucket)} runs on "
                f"{self._facts.name}; see above why not, and whether its memory is free"
            )
        if seconds > library * (1 - MARGIN):
            return library, LIBRARY
        return seconds, min(self._seconds, key=self._seconds.__getitem__)

    def _measure(self, candidates: Iterable[LinearConfig]) -> None:
        new = [c for c in dict.fromkeys(candidates) if c not in self._seconds]
        works = self._pool.map(
            compiles,
            [(self._linear, self._spec, self._facts, self._bucket, config) for config in new],
        )
        usable = [config for config, fine in zip(new, works, strict=True) if fine]
        self._seconds |= dict.fromkeys(new, float("inf"))
        for config, seconds in zip(usable, self._time(usable), strict=True):
            self._seconds[config] = seconds

    def _time(self, usable: Sequence[LinearConfig]) -> list[float]:
        """Time each between small kernels, as in a model: what overlaps with them counts less."""
        import torch

        from hotshoe_triton.norm import Norm

        spec, device = self._spec, self._facts.device
        count = max(2, min(24, ROTATED_BYTES // weight_bytes(spec)))
        ops = [loaded(self._linear, spec, self._facts) for _ in range(count)]
        x = rows(self._bucket, spec, device)
        norm = Norm(NormSpec(spec.in_features, 1e-5, spec.dtype), self._facts)
        weight = torch.ones(spec.in_features, device=device, dtype=x.dtype)
        seconds = []
        for config in usable:
            for op in ops:
                op.configure(self._bucket, config)
            heat_s = HEAT_S if self._many else 0.0
            seconds.append(replayed(lambda: [op(norm(x, weight)) for op in ops], heat_s) / count)
        return seconds


def _sample(space: Sequence[LinearConfig], trials: int) -> Iterator[LinearConfig]:
    """Yield as many configurations of each kernel."""
    kernels = {config.kernel for config in space}
    for kernel in sorted(kernels):
        own = [config for config in space if config.kernel == kernel]
        yield from random.Random(0).sample(own, min(-(-trials // len(kernels)), len(own)))


def _distance(a: LinearConfig, b: LinearConfig) -> int:
    return sum(getattr(a, f.name) != getattr(b, f.name) for f in fields(LinearConfig))


def loaded(linear: type[Linear], spec: LinearSpec, facts: DeviceFacts) -> Linear:
    """Return the operation with a random weight, its device taken."""
    import torch

    torch.get_device_module(facts.device).set_device(facts.device)
    op = linear(spec, facts)
    shape = (spec.out_features, spec.in_features)
    tensors = {"weight": [torch.randn(shape, device=facts.device, dtype=torch.bfloat16)]}
    if spec.bias:
        tensors["bias"] = [torch.randn(spec.out_features, device=facts.device)]
    op.load(tensors)
    return op


def rows(count: int, spec: LinearSpec, device: str) -> Tensor:
    """Return random rows of x."""
    import torch

    return torch.randn(count, spec.in_features, device=device).to(getattr(torch, spec.dtype))


_OPS: dict[LinearSpec, Linear] = {}


def compiles(job: tuple[type[Linear], LinearSpec, DeviceFacts, int, LinearConfig]) -> bool:
    """Run a configuration once, in a process of its own, which leaves it in Triton's cache."""
    import torch

    linear, spec, facts, bucket, config = job
    if spec not in _OPS:
        _OPS.clear()
        _OPS[spec] = loaded(linear, spec, facts)
    op = _OPS[spec]
    try:
        op.configure(bucket, config)
        found = op(rows(bucket, spec, facts.device))
        torch.cuda.synchronize()
    except Exception as error:  # too little shared memory, registers, or a compiler's failure
        print(f"  {config}: {type(error).__name__}: {first_line(error)}", flush=True)
        return False
    return bool(torch.isfinite(found).all())


def first_line(error: Exception) -> str:
    """Return what an error says first."""
    return next(iter(str(error).strip().splitlines()), "")


def replayed(run: Any, heat_s: float = 0.0) -> float:
    """Return the median seconds of a recorded run, once it was repeated for so long."""
    import torch

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    begin_s = time.perf_counter()
    while time.perf_counter() - begin_s < heat_s:
        graph.replay()
        torch.cuda.synchronize()
    seconds = []
    for i in range(13):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 3:
            seconds.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(seconds)
