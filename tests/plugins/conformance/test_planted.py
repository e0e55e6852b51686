"""Planted defects of candidates: each one is found on any seed, and its candidate is named.

A defect is planted in one of three ways: the candidate takes its specification for another one
(`OVERLOOKED`), it changes what a right operation does in a call (`BENT`), or it says something
wrong of itself (`CLAIMED`). Defects of platforms, plugins, formats and ranks are in
`test_planted_packages`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from hotshoe.lazy import resolve_lazy
from hotshoe.slots import SLOTS, Candidate, KVLayout, Verdict, accept
from hotshoe_conformance.cases import SUITES
from hotshoe_conformance.kit import Kit, Options


def right(slot: str, spec: Any, facts: Any) -> Any:
    return resolve_lazy(SLOTS[slot].reference)(spec, facts)


def judged(spec: Any, facts: Any) -> Any:
    """Accept what a reference accepts that has a plain result."""
    return accept(5)


def report(installed: Any, candidate: Candidate, case: int) -> str:
    """Run one case with fresh numbers, and return what the user reads."""
    options = Options(slot=candidate.slot, candidate=candidate.name, case=case)
    return Kit("mine", options, installed(candidate)).run().as_text()


def first_case(
    slot: str, fits: Callable[[Any], bool] = lambda spec: True, rows: int | None = None
) -> int:
    """Return the first small case of a slot whose specification fits, of so many rows."""
    return next(
        at
        for at, setup in enumerate(SUITES[slot].grid(()))
        if setup.quick and fits(setup.spec) and rows in (None, getattr(setup.shape, "count", None))
    )


#: A slot, and the fields that its candidate takes for others.
OVERLOOKED: list[tuple[str, Callable[[Any], dict[str, Any]]]] = [
    ("attention", lambda s: {"window": None}),
    ("attention", lambda s: {"window": s.window and s.window + 1}),
    ("attention", lambda s: {"window": s.window and s.window - 1}),
    ("attention", lambda s: {"softcap": None}),
    ("attention", lambda s: {"scale": s.head_dim**-0.5}),
    ("attention", lambda s: {"scale": s.scale * 2}),
    ("rotary_and_cache", lambda s: {"interleaved": False}),
    ("rotary_and_cache", lambda s: {"qk_norm_offset": 0.0}),
    ("mla_attention", lambda s: {"scale": s.scale * 2}),
    ("mla_attention", lambda s: {"interleaved": False}),
    ("indexer", lambda s: {"interleaved": False}),
    ("indexer", lambda s: {"top_k": s.top_k - 1}),
    ("sparse_mla_attention", lambda s: {"attention": replace(s.attention, scale=1.0)}),
    ("linear", lambda s: {"bias": False}),
    ("rms_norm", lambda s: {"weight_offset": 0.0}),
    ("rms_norm", lambda s: {"eps": 0.1}),
    ("add_rms_norm", lambda s: {"residual_scale": 1.0}),
    ("add_rms_norm", lambda s: {"weight_offset": 0.0}),
    ("layer_norm", lambda s: {"eps": 0.1}),
    ("gated_activation", lambda s: {"activation": "silu"}),
    ("gated_mlp", lambda s: {"activation": "silu"}),
    ("moe", lambda s: {"limit": None}),
    ("moe", lambda s: {"shift": 0.0}),
    ("moe", lambda s: {"alpha": 1.0}),
    ("moe", lambda s: {"top_k": max(1, s.top_k - 1)}),
    ("moe", lambda s: {"router": replace(s.router, renormalize=False)}),
    ("moe", lambda s: {"router": replace(s.router, scale=1.0)}),
    ("moe", lambda s: {"router": replace(s.router, scoring="softmax", jitter=0.0)}),
    ("embedding", lambda s: {"scale": 1.0}),
    ("state_space", lambda s: {"norm": "after" if s.norm == "before" else s.norm}),
    ("state_space", lambda s: {"dt_limits": (0.0, 1e-3)}),
    ("state_space", lambda s: {"activation": "relu"}),
    ("selective_scan", lambda s: {"norm_eps": None}),
    ("gated_delta", lambda s: {"gate": "silu"}),
    ("gated_delta", lambda s: {"norm_eps": 0.1}),
]


@pytest.mark.parametrize(
    ("slot", "taken_for"),
    OVERLOOKED,
    ids=[f"{at}-{slot}" for at, (slot, _) in enumerate(OVERLOOKED)],
)
def test_a_field_that_is_overlooked(installed, slot: str, taken_for: Any) -> None:
    def build(spec: Any, facts: Any) -> Any:
        return right(slot, replace(spec, **taken_for(spec)), facts)

    case = first_case(slot, lambda spec: replace(spec, **taken_for(spec)) != spec)
    said = report(installed, Candidate(slot, "mine", judged, build), case)
    assert f"WRONG {slot}/mine: " in said


class Bent:
    """A right operation whose call is changed."""

    def __init__(self, op: Any, change: Callable[..., Any]) -> None:
        self._op, self._change = op, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)

    def __call__(self, *arguments: Any) -> Any:
        return self._change(self._op, *arguments)


def with_metadata(**changes: Callable[[Any], Any]) -> Callable[..., Any]:
    """Let attention read a step that is described otherwise."""

    def attend(op: Any, q: Any, cache: Any, step: Any, sinks: Any) -> Any:
        other = copy.copy(step)
        for name, change in changes.items():
            setattr(other, name, change(step))
        return op(q, cache, other, sinks)

    return attend


def after(change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Change what comes out."""
    return lambda op, *arguments: change(op(*arguments))


def before(at: int, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Change one argument."""
    return lambda op, *given: op(*given[:at], change(given[at]), *given[at + 1 :])


def last_row_unwritten(out: Any) -> Any:
    lost = torch.empty_like(out)
    lost[:-1] = out[:-1]
    return lost


def beside(op: Any, x: Any, weight: Any) -> Any:
    x.as_strided((1,), (1,), x.storage_offset() - 1).zero_()
    return op(x, weight)


def into_x(op: Any, x: Any, weight: Any) -> Any:
    return x.copy_(op(x, weight))


def into_weight(op: Any, x: Any, weight: Any) -> Any:
    out = op(x, weight)
    weight.zero_()
    return out


def reused() -> Callable[..., Any]:
    kept: dict[Any, Any] = {}
    return lambda op, x, weight: kept.setdefault(x.shape, torch.empty(x.shape)).copy_(op(x, weight))


def remembered() -> Callable[..., Any]:
    kept: dict[Any, Any] = {}
    return lambda op, x, weight: op(kept.setdefault(x.shape, x), weight)


def collected() -> Callable[..., Any]:
    kept: list[Any] = []

    def call(op: Any, x: Any, weight: Any) -> Any:
        kept.append(op(x, weight))
        return kept[-1].clone()

    return call


def restless() -> Callable[..., Any]:
    calls: list[int] = []

    def call(op: Any, x: Any, weight: Any) -> Any:
        calls.append(1)
        return op(x, weight) * (1 + len(calls) % 2 * 2**-10)

    return call


def tired() -> Callable[..., Any]:
    left = iter(range(2))

    def call(op: Any, x: Any, weight: Any) -> Any:
        next(left)
        return op(x, weight)

    return call


#: These keep something from call to call, so each operation has its own.
KEEPING = (reused, remembered, collected, restless, tired)
NORM, ROTARY = "rms_norm", "rotary_and_cache"
#: What is wrong, the slot, how a call is changed, and what has to be said.
BENT: dict[str, tuple[str, Callable[..., Any], str]] = {
    "wrong shape": (NORM, after(lambda y: y[:-1]), "not [5, 64]"),
    "wrong type": (NORM, after(lambda y: y.double()), "torch.float64, not [5, 64] torch.float32"),
    "wrong device": (NORM, after(lambda y: y.to("meta")), "meta"),
    "a tuple": (NORM, after(lambda y: (y, y)), "returned tuple, not a tensor"),
    "nothing": (NORM, after(lambda y: None), "returned NoneType, not a tensor"),
    "NaN": (NORM, after(lambda y: y * float("nan")), "y: nan instead of"),
    "infinity": (NORM, after(lambda y: y.index_fill(1, torch.tensor([3]), torch.inf)), "y: inf"),
    "unwritten rows": (NORM, after(last_row_unwritten), "y: nan instead of"),
    "a channel off": (NORM, after(lambda y: y.roll(1, -1)), "times the tolerance of float32"),
    "another row": (NORM, after(lambda y: y.flip(0)), "times the tolerance of float32"),
    "8 bits too few": (NORM, after(lambda y: y.bfloat16().float()), "times the tolerance"),
    "writes outside": (NORM, beside, "it writes where it must not: element -1"),
    "writes its input": (NORM, into_x, "x: "),
    "writes its weight": (NORM, into_weight, "it writes where it must not: element 0"),
    "one buffer for all": (NORM, reused, "another call returns the memory of the first"),
    "reads the first input": (NORM, remembered, "another call with the same inputs gives anoth"),
    "keeps every call": (NORM, collected, "4 calls left 4 tensors behind"),
    "another result": (NORM, restless, ""),
    "works twice": (NORM, tired, "a later call raises StopIteration"),
    "raises": (NORM, before(0, lambda x: x @ x), "the call raises RuntimeError: mat1 and mat2"),
    "exits": (NORM, before(0, lambda x: exit(3)), "the call raises SystemExit: 3"),
    "a view of its input": (NORM, lambda op, x, w: x.copy_(op(x, w))[:], "x: "),
    "old residual": ("add_rms_norm", lambda op, x, r, w: (op(x, r.clone(), w)[0], r), "residual: "),
    "results swapped": ("add_rms_norm", after(lambda pair: pair[::-1]), ": "),
    "no mean": ("layer_norm", lambda op, x, w, b: F.rms_norm(x, x.shape[-1:], w) + b, "y: "),
    "no bias": ("layer_norm", before(2, torch.zeros_like), "y: "),
    "halves swapped": ("gated_activation", before(0, lambda x: x.roll(x.shape[1] // 2, 1)), "y: "),
    "an id off": ("embedding", before(0, lambda ids: ids.clamp(min=1) - 1), "y: "),
    "writes over y": ("lora", lambda op, y, *given: op(y.zero_(), *given), "y: "),
    "a wrong scale of x": ("linear", before(0, lambda x: x * 3), "y: "),
    "ignores temperature": ("sample", before(1, torch.zeros_like), "tokens: "),
    "takes top_k for 1": ("sample", before(2, torch.ones_like), "tokens: "),
    "ignores top_p": ("sample", before(3, torch.ones_like), "tokens: "),
    "ignores min_p": ("sample", before(4, torch.zeros_like), "tokens: "),
    "its own chance": ("sample", before(5, lambda u: 1 - u), "tokens: "),
    "no sinks": ("attention", lambda op, q, c, step, sinks: op(q, c, step, None), "out: "),
    "a key too many": ("attention", with_metadata(seq_lens=lambda s: s.seq_lens + 1), "out: "),
    "a key too few": (
        "attention",
        with_metadata(seq_lens=lambda s: (s.seq_lens - 1).clamp(min=1)),
        "out: ",
    ),
    "blocks in order": (
        "attention",
        with_metadata(block_table=lambda s: s.block_table.sort(dim=1).values),
        "out: ",
    ),
    "the first table row": (
        "attention",
        with_metadata(block_table=lambda s: s.block_table[:1].expand_as(s.block_table)),
        "out: ",
    ),
    "heads apart": ("attention", after(lambda y: y.unflatten(1, (4, -1))), "not ["),
    "a position off": (ROTARY, before(1, lambda positions: positions + 1), ""),
    "a slot off": (ROTARY, before(4, lambda slots: slots ^ 1), "cache"),
    "no norm of q and k": (ROTARY, before(5, lambda norms: None), ""),
    "keys alone": (
        ROTARY,
        lambda op, qkv, p, t, cache, slots, n: (
            old := cache[1].clone(),
            op(qkv, p, t, cache, slots, n),
            cache[1].copy_(old),
        )[1],
        "cache",
    ),
}
#: Which specification a change needs before it shows.
NEEDS: dict[str, Callable[[Any], bool]] = {
    "no sinks": lambda s: s.sinks,
    "no norm of q and k": lambda s: s.qk_norm_eps is not None,
    "a position off": lambda s: s.rotary_dim > 0,
}
#: So many rows that chance hides nothing.
MANY_ROWS = 300


@pytest.mark.parametrize("what", BENT)
def test_a_call_that_goes_wrong(installed, what: str) -> None:
    slot, change, words = BENT[what]

    def build(spec: Any, facts: Any) -> Any:
        return Bent(right(slot, spec, facts), change() if change in KEEPING else change)

    shows = NEEDS.get(what, lambda spec: True)
    case = first_case(slot, shows, MANY_ROWS if slot == "sample" else None)
    said = report(installed, Candidate(slot, "mine", judged, build), case)
    assert f"WRONG {slot}/mine: " in said
    assert words in said


def touching(spec: Any, facts: Any) -> Verdict:
    return accept(int(torch.ones(1)))


def changing() -> Callable[..., Verdict]:
    answers: list[int] = []

    def supports(spec: Any, facts: Any) -> Verdict:
        answers.append(1)
        return accept(len(answers))

    return supports


def liar(**methods: Any) -> Any:
    """Build a right matrix product that says something wrong of itself."""
    return type("Liar", (resolve_lazy(SLOTS["linear"].reference),), methods)


def moving(self: Any, tensors: Any) -> None:
    self._weight = torch.empty(0)
    super(type(self), self).load(tensors)


def held(self: Any) -> int:
    return sum(part.nbytes for part in super(type(self), self).state().values())


OTHER = KVLayout("other", "htd", "htd")
#: What is wrong, and a candidate's slot, fields and what has to be said.
CLAIMED: dict[str, tuple[str, dict[str, Any], str]] = {
    "build raises": (NORM, {"build": lambda s, f: 1 // 0}, "but building raises ZeroDivisionE"),
    "no such module": (NORM, {"build": "no_such_module:f"}, "building raises ModuleNotFoundError"),
    "no such function": (NORM, {"build": "math:no_such"}, "building raises AttributeError"),
    "builds nothing": (NORM, {"build": lambda s, f: None}, "'NoneType' object is not callable"),
    "verdict raises": (NORM, {"supports": lambda s, f: 1 // 0}, "supports() raised ZeroDivis"),
    "verdict is a bool": (NORM, {"supports": lambda s, f: True}, "supports() returned bool, not"),
    "no reason": (NORM, {"supports": lambda s, f: Verdict(None, "")}, "refuses without a reason"),
    "verdict touches": (NORM, {"supports": touching}, "supports() used tensors"),
    "verdict changes": (NORM, {"supports": changing()}, "supports() answers differently"),
    "not invariant": (
        NORM,
        {
            "build": lambda s, f: Bent(
                right(NORM, s, f), lambda op, x, w: op(x, w) * (1 + 2e-7 * (len(x) > 1))
            ),
            "batch_invariant": True,
        },
        "claims batch invariance, but a row alone is another",
    ),
    "not the reference's bits": (
        NORM,
        {
            "build": lambda s, f: Bent(right(NORM, s, f), after(lambda y: y * (1 + 2**-20))),
            "tolerance": 0,
        },
        "claims the reference's bits, but",
    ),
    "nbytes is 0": ("linear", {"build": liar(nbytes=lambda self: 0)}, "nbytes() says 0"),
    "nbytes is None": ("linear", {"build": liar(nbytes=lambda self: None)}, "nbytes() says None"),
    "state is empty": (
        "linear",
        {"build": liar(state=lambda self: {}, nbytes=held)},
        "state() has []",
    ),
    "weights move": ("linear", {"build": liar(load=moving)}, "another load() moves weight"),
    "layout raises": ("attention", {"layout": lambda s, f: 1 // 0}, "layout() raises ZeroDivis"),
    "layout of another": ("attention", {"layout": lambda s, f: OTHER}, "declares layout KVLayout("),
}


@pytest.mark.parametrize("what", CLAIMED)
def test_a_claim_that_is_false(installed, what: str) -> None:
    slot, fields, words = CLAIMED[what]
    whole = {"supports": judged, "build": SLOTS[slot].reference, **fields}
    said = report(installed, Candidate(slot, "mine", **whole), first_case(slot))
    assert f"{slot}/mine" in said
    assert words in said
    assert "does not conform" in said


def test_the_list_is_long_enough() -> None:
    """With those of packages it has 80 and more; none may leave it unnoticed."""
    assert len(OVERLOOKED) + len(BENT) + len(CLAIMED) >= 95
