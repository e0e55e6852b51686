"""Cases of slot `communicator`: every operation, among ranks that are processes of their own.

What a rank brings and must get follows from the case alone, so ranks need to agree on nothing but
its number. Three cases are about ranks that go or stay away; they have a group to themselves.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import CommunicatorSpec, KVLayout
from hotshoe_conformance.cases.base import Setup, Suite
from hotshoe_conformance.place import Place
from hotshoe_conformance.tolerance import Close, Exact, Expected

SLOT = "communicator"
SIZES = (2, 3)
SUMMED = ("float32", "bfloat16", "float16", "float64", "int32", "int64")
MOVED = (*SUMMED, "uint8", "bool")
#: Unit roundoffs: with several ranks a sum may be rounded to its type after each addition.
ROUNDOFF = {"float32": 2**-24, "bfloat16": 2**-8, "float16": 2**-11, "float64": 2**-53}
TAILS = ((), (3,), (2, 5))
#: More than one message's worth, and no multiple of anything.
LONG = (300_001,)
#: Operations that join or divide, and those that also take no rows at all.
PIECES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
EMPTY = (*PIECES, "broadcast")
OUT = (False, True)
#: How long a rank waits for another one, and for one that is known not to come.
TIMEOUT_S, SHORT_S = 20.0, 0.5
#: What the last rank does, or all but the first, in the cases that end a group.
DIES, LEAVES, STAYS_AWAY = "a rank dies", "a rank leaves", "a rank stays away"
LOSSES = (LEAVES, DIES)
ENDINGS = (STAYS_AWAY, *LOSSES)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One operation over all ranks.

    Attributes:
        verb: Of `CALLS`, or how a group ends.
        rows: Of each rank's tensor, or of each piece; 0 is allowed.
        tail: Its further sizes.
        sizes: Rows by rank, or for `all_to_all` by sender and then receiver; empty: all even.
        out: The result goes into a given tensor; for `all_reduce` into the input.
        source: Who broadcasts.
    """

    verb: str
    dtype: str = "float32"
    rows: int = 4
    tail: tuple[int, ...] = (3,)
    sizes: tuple[int, ...] = ()
    out: bool = False
    source: int = 0

    def table(self, size: int) -> list[list[int]]:
        """Return how many rows each rank has for each."""
        flat = self.sizes or (self.rows,) * size**2
        return [list(flat[size * rank : size * (rank + 1)]) for rank in range(size)]

    def pieces(self, size: int) -> list[int]:
        """Return the rows of each rank's piece."""
        return list(self.sizes or (self.rows,) * size)

    def input_rows(self, size: int) -> list[int]:
        """Return the rows that each rank brings."""
        if self.verb == "all_gather":
            return self.pieces(size)
        if self.verb == "reduce_scatter":
            return [sum(self.pieces(size))] * size
        if self.verb == "all_to_all":
            return [sum(row) for row in self.table(size)]
        return [self.rows] * size


def _all_to_all(op: Any, x: Tensor, out: Tensor | None, case: Exchange) -> Tensor:
    table = case.table(op.size)
    told = (table[op.rank], [row[op.rank] for row in table]) if case.sizes else (None, None)
    return op.all_to_all(x, *told, out)  # type: ignore[no-any-return]


def _uneven(op: Any, x: Tensor, out: Tensor | None, case: Exchange) -> Tensor:
    """Leave out sizes that are needed."""
    x = torch.cat([x] * op.size + [x[:1]])
    for operation in (op.reduce_scatter, op.all_to_all):
        try:
            operation(x)
        except ValueError:
            continue
        raise AssertionError(f"{len(x)} rows for {op.size} ranks without sizes raise no ValueError")
    return x[: case.rows]


def _messages(op: Any, x: Tensor, out: Tensor | None, case: Exchange) -> Tensor:
    """Send every row to everybody, and await all of them, the last one first where `out`."""
    peers = [peer for peer in range(op.size) if peer != op.rank]
    found = x.new_zeros((op.size, *x.shape))
    found[op.rank] = x
    sends = [(op.send, x[row], peer) for peer in peers for row in range(len(x))]
    receives = [(op.recv, found[peer, row], peer) for peer in peers for row in range(len(x))]
    work = [*receives, *sends] if case.out else [*sends, *receives]
    pending = [start(tensor, peer) for start, tensor, peer in work]
    for transfer in reversed(pending) if case.out else pending:
        transfer.wait()
    return found


def _sequence(op: Any, x: Tensor, out: Tensor | None, case: Exchange) -> Tensor:
    """Feed each operation with what the one before gave, so that none may overtake another."""
    for _ in range(case.rows):
        x = op.all_reduce(x).remainder(1009)
        x = op.all_to_all(x.repeat(op.size, *[1] * (x.dim() - 1)))[: case.rows] + op.rank
        x = op.reduce_scatter(op.all_gather(x)).remainder(1009)
        x = op.broadcast(x + op.rank, op.size - 1)
    return x


#: Verb -> its call: the operation, this rank's tensor, where the result is wanted, the case.
CALLS: Mapping[str, Callable[[Any, Tensor, Tensor | None, Exchange], Tensor]] = {
    "all_reduce": lambda op, x, out, case: op.all_reduce(x, out),
    "all_gather": lambda op, x, out, case: op.all_gather(x, case.sizes or None, out),
    "reduce_scatter": lambda op, x, out, case: op.reduce_scatter(x, case.sizes or None, out),
    "all_to_all": _all_to_all,
    "broadcast": lambda op, x, out, case: op.broadcast(x, case.source),
    "send and recv": _messages,
    "one after the other": _sequence,
    "uneven without sizes": _uneven,
}


@dataclass(slots=True)
class CommunicatorProblem:
    """Every rank's tensor; `rank` is whose side this is. A group is opened and closed elsewhere."""

    spec: CommunicatorSpec
    case: Exchange
    inputs: list[Tensor]
    rank: int = 0

    @property
    def same_everywhere(self) -> bool:
        """Tell whether all ranks must get the same bits."""
        return self.case.verb == "all_reduce"

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        x, case = place(self.inputs[self.rank], written=True), self.case
        in_place = case.verb == "all_reduce" and case.out
        out = None
        if case.out and case.verb in PIECES:
            out = x if in_place else place.empty(*self._value().shape, dtype=x.dtype)
        y = CALLS[case.verb](op, x, out, case)
        assert out is None or y is out, "the result is another tensor than `out`"
        assert case.verb != "broadcast" or y is x, "the result is another tensor than the input"
        place.synchronize()
        return {"y": y, "x": x}

    def expected(self) -> Mapping[str, Expected]:
        value, dtype = self._value(), self.case.dtype
        wanted: dict[str, Expected] = {"y": Exact(value)}
        if self.case.verb in ("all_reduce", "reduce_scatter") and value.is_floating_point():
            magnitude = self._mine(sum(x.double().abs() for x in self.inputs))
            slack = (self.spec.size - 1) * ROUNDOFF[dtype] * magnitude
            wanted["y"] = Close(self._mine(self._total()), dtype, magnitude, slack)
        if not (
            self.case.verb == "broadcast" or (self.case.verb == "all_reduce" and self.case.out)
        ):
            wanted["x"] = Exact(self.inputs[self.rank])
        return wanted

    def _total(self) -> Tensor:
        wide = torch.float64 if self.inputs[0].is_floating_point() else self.inputs[0].dtype
        return torch.stack([x.to(wide) for x in self.inputs]).sum(0, dtype=wide)

    def _mine(self, total: Any) -> Tensor:
        """Return this rank's piece of a sum."""
        if self.case.verb == "all_reduce":
            return torch.as_tensor(total)
        return total.split(self.case.pieces(self.spec.size))[self.rank]  # type: ignore[no-any-return]

    def _value(self) -> Tensor:
        """Return what this rank must get; of rounded sums, the shape and type."""
        case, size, mine = self.case, self.spec.size, self.inputs[self.rank]
        match case.verb:
            case "all_reduce" | "reduce_scatter":
                return self._mine(self._total()).to(mine.dtype)
            case "all_gather":
                return torch.cat(self.inputs)
            case "all_to_all":
                parts = zip(self.inputs, case.table(size), strict=True)
                return torch.cat([x.split(rows)[self.rank] for x, rows in parts])
            case "broadcast":
                return self.inputs[case.source]
            case "send and recv":
                return torch.stack(self.inputs)
            case "one after the other":
                return self._in_turn()
        return mine

    def _in_turn(self) -> Tensor:
        """Do what `_sequence` does, for all ranks at once."""
        size, xs = self.spec.size, self.inputs
        for _ in range(self.case.rows):
            x = torch.stack(xs).sum(0).remainder(1009)  # and rank r then holds x + r
            xs = [(size * (x + size - 1)).remainder(1009) + size - 1] * size
        return xs[self.rank]


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    return [setup for size in SIZES for setup in _of_size(size)]


def _of_size(size: int) -> Iterator[Setup]:
    spec = CommunicatorSpec(size)
    uneven = tuple(range(size))
    table = tuple((3 * a + 5 * b) % 4 for a in range(size) for b in range(size))
    wide = Exchange("all_reduce", rows=2, tail=LONG)
    fixed = [
        *(Exchange("all_reduce", dtype) for dtype in SUMMED),
        *(Exchange("all_reduce", dtype, out=True) for dtype in SUMMED),
        *(Exchange("reduce_scatter", dtype, sizes=uneven) for dtype in SUMMED),
        *(Exchange(verb, dtype) for verb in ("all_gather", "all_to_all") for dtype in MOVED),
        *(Exchange("all_gather", dtype, sizes=uneven, out=True) for dtype in MOVED),
        *(Exchange("all_to_all", dtype, sizes=table, out=True) for dtype in MOVED),
        *(Exchange("broadcast", dtype, source=size - 1) for dtype in MOVED),
        *(Exchange("send and recv", dtype, out=index % 2 > 0) for index, dtype in enumerate(MOVED)),
        *(replace(wide, verb=verb, out=out) for verb in CALLS if verb in PIECES for out in OUT),
        *(Exchange(verb, rows=0, out=out) for verb in CALLS if verb in EMPTY for out in OUT),
        *(Exchange(verb, tail=tail) for verb in CALLS if verb in PIECES for tail in TAILS),
        *(Exchange("broadcast", rows=2, tail=LONG, source=rank) for rank in range(size)),
        Exchange("send and recv", rows=2, tail=(0,)),
        Exchange("send and recv", rows=2, tail=LONG),
        Exchange("send and recv", rows=2, tail=LONG, out=True),
        Exchange("one after the other", "int64", rows=9),
        Exchange("uneven without sizes"),
        *map(Exchange, ENDINGS),
    ]
    for case in fixed:
        yield Setup(spec, case, quick=size == SIZES[0])


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    size = rng.choice(SIZES)
    verb = rng.choice([verb for verb in CALLS if verb != "uneven without sizes"])
    dtype = rng.choice(SUMMED if verb in ("all_reduce", "reduce_scatter") else MOVED)
    if verb == "one after the other":
        return Setup(CommunicatorSpec(size), Exchange(verb, "int64", rng.randrange(1, 9)))
    count = {"all_gather": size, "reduce_scatter": size, "all_to_all": size**2}.get(verb, 0)
    sizes = tuple(rng.randrange(6) for _ in range(count)) if rng.random() < 0.7 else ()
    tail = tuple(rng.randrange(1, 40) for _ in range(rng.randrange(3)))
    rows, out = rng.randrange(6), rng.random() < 0.5
    case = Exchange(verb, dtype, rows, tail, sizes, out, rng.randrange(size))
    return Setup(CommunicatorSpec(size), case)


def _problem(setup: Setup, source: torch.Generator) -> CommunicatorProblem:
    case, dtype = setup.shape, getattr(torch, setup.shape.dtype)
    inputs = []
    for rows in case.input_rows(setup.spec.size):
        if dtype.is_floating_point:
            values = torch.randn((rows, *case.tail), generator=source, dtype=torch.float64)
        else:
            values = torch.randint(
                2 if case.dtype == "bool" else 2**26, (rows, *case.tail), generator=source
            )
        inputs.append(values.to(dtype))
    return CommunicatorProblem(setup.spec, case, inputs)


SUITE = Suite(SLOT, _grid, _draw, _problem, among_ranks=True)
