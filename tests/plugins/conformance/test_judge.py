"""Every way in which a candidate can be wrong is found and named, and raises nothing."""

import gc
import itertools
import time

import pytest
import torch

from hotshoe.slots import Candidate, NormSpec, Verdict, accept, refuse
from hotshoe.slots.reference.linear import Linear
from hotshoe.slots.reference.norm import build_norm, rms_norm
from hotshoe_conformance.cases import SUITES
from hotshoe_conformance.cases.base import HOST
from hotshoe_conformance.judge import ask, hoard

SPEC = NormSpec(64, 1e-6, "float32")


def test_the_reference_is_right(run) -> None:
    outcomes = [*run("rms_norm", build_norm, supports=lambda spec, facts: accept(1))]
    assert len(outcomes) > 20
    assert [o.defect for o in outcomes if o.defect] == []
    assert max(o.error for o in outcomes) < 1


def nan(spec, facts):
    return lambda x, weight: torch.full_like(x, float("nan"))


def one_nan(spec, facts):
    def norm(x, weight):
        out = rms_norm(x, weight, spec.eps, spec.weight_offset)
        out.view(-1)[-1:] = float("nan")
        return out

    return norm


def unwritten(spec, facts):
    def norm(x, weight):
        out = torch.empty_like(x)
        out[:, :-1] = rms_norm(x, weight, spec.eps, spec.weight_offset)[:, :-1]
        return out

    return norm


def wrong_type(spec, facts):
    return lambda x, weight: rms_norm(x, weight, spec.eps, spec.weight_offset).double()


def wrong_shape(spec, facts):
    return lambda x, weight: rms_norm(x, weight, spec.eps, spec.weight_offset)[:-1]


def nothing(spec, facts):
    return lambda x, weight: None


def in_place(spec, facts):
    return lambda x, weight: x.copy_(rms_norm(x, weight, spec.eps, spec.weight_offset))


def restless(spec, facts):
    """Every second call is off by the last bit."""
    calls = itertools.count()

    def norm(x, weight):
        out = rms_norm(x, weight, spec.eps, spec.weight_offset)
        return out * (1 + next(calls) % 2 * 2**-23)

    return norm


def fails_later(spec, facts):
    return lambda x, weight: x @ x


def cannot_be_built(spec, facts):
    raise OSError("libvendor.so.6: cannot open shared object file")


def overrunning(spec, facts):
    def norm(x, weight):
        out = rms_norm(x, weight, spec.eps, spec.weight_offset)
        if len(x):
            x.as_strided((1,), (1,), x.storage_offset() - 1).zero_()
        return out

    return norm


def spoiling(spec, facts):
    """Leaves another weight behind."""

    def norm(x, weight):
        out = rms_norm(x, weight, spec.eps, spec.weight_offset)
        weight.zero_()
        return out

    return norm


def hoarding(spec, facts):
    """Writes every result into the same memory."""
    kept = {}

    def norm(x, weight):
        out = kept.setdefault(x.shape, torch.empty_like(x, memory_format=torch.contiguous_format))
        return out.copy_(rms_norm(x, weight, spec.eps, spec.weight_offset))

    return norm


def clinging(spec, facts):
    """Goes on reading the input of its first call."""
    kept = {}

    def norm(x, weight):
        x = kept.setdefault(x.shape, x)
        return rms_norm(x, weight, spec.eps, spec.weight_offset)

    return norm


@pytest.mark.parametrize(
    ("build", "defect"),
    [
        (overrunning, "it writes where it must not: element -1 of the memory of a [5, 64] tensor"),
        (spoiling, "it writes where it must not: element 0 of the memory of a [64] tensor"),
        (hoarding, "y: another call returns the memory of the first one's result"),
        (clinging, "y: another call with the same inputs gives another result"),
        (nan, "y: nan instead of"),
        (one_nan, "y: nan instead of"),
        (unwritten, "y: nan instead of"),
        (wrong_type, "y: returned [5, 64] torch.float64, not [5, 64] torch.float32"),
        (wrong_shape, "y: returned [4, 64] torch.float32, not [5, 64]"),
        (nothing, "the call raises AssertionError: returned NoneType, not a tensor"),
        (in_place, "x: 320 of 320 values differ"),
        (restless, "y: another call with the same inputs gives another result"),
        (fails_later, "supports() says yes, but the call raises RuntimeError: mat1 and mat2"),
        (cannot_be_built, "supports() says yes, but building raises OSError: libvendor.so.6"),
        ("no_such_module:build", "building raises ModuleNotFoundError"),
    ],
)
def test_what_is_wrong_is_named(defects, build, defect: str) -> None:
    found = defects("rms_norm", build)
    assert found
    assert defect in found[0]


def raising(spec, facts):
    raise KeyError(spec.dtype)


def touching(spec, facts):
    return accept(int(torch.zeros(1) + 1))


def slow(spec, facts):
    time.sleep(0.6)
    return accept(1)


ANSWERS = iter(range(10**6))


def changing(spec, facts):
    return accept(next(ANSWERS))


@pytest.mark.parametrize(
    ("supports", "defect"),
    [
        (raising, "supports() raised KeyError: 'float32'"),
        (lambda spec, facts: True, "supports() returned bool, not a Verdict"),
        (lambda spec, facts: Verdict(None, ""), "supports() refuses without a reason"),
        (lambda spec, facts: refuse(""), "this one has no reason"),
        (touching, "supports() used tensors"),
        (slow, " s, each time; it is asked by every layer"),
        (changing, "supports() answers differently"),
    ],
)
def test_dishonest_verdicts(supports, defect: str) -> None:
    _, found = ask(Candidate("rms_norm", "mine", supports, "m:f"), SPEC, HOST)
    assert defect in found


def test_a_refusal_is_no_defect_and_runs_nothing(run) -> None:
    outcomes = [*run("rms_norm", cannot_be_built, supports=lambda s, f: refuse("not today"))]
    assert {(o.refused, o.defect) for o in outcomes} == {("not today", "")}


def by_batch(spec, facts):
    """Rounds differently for an even number of rows."""

    def norm(x, weight):
        out = rms_norm(x, weight, spec.eps, spec.weight_offset)
        return out if len(x) == 1 else out * (1 + 2e-7)

    return norm


def test_a_claim_of_batch_invariance_is_tested(defects) -> None:
    assert defects("rms_norm", by_batch) == []
    found = defects("rms_norm", by_batch, batch_invariant=True)
    assert "claims batch invariance, but a row alone is another" in found[0]
    assert defects("rms_norm", build_norm, batch_invariant=True) == []


@pytest.mark.parametrize("claimed", [0, 10**9, 1.5, None])
def test_memory_that_is_misreported(defects, claimed) -> None:
    class Liar(Linear):
        def nbytes(self):
            return claimed

    found = defects("linear", Liar)
    assert f"nbytes() says {claimed!r}; a weight of this size takes" in found[0]


def test_weights_that_move_when_they_are_loaded_again(defects) -> None:
    class Mover(Linear):
        def load(self, tensors):
            self._weight = torch.empty(0)
            super().load(tensors)

    found = defects("linear", Mover)
    assert "another load() moves weight, so that recordings read old values" in found[0]


def test_a_device_without_addresses_is_believed(defects) -> None:
    class Hidden(torch.Tensor):
        def data_ptr(self):
            raise RuntimeError("the host cannot follow an address of the device")

    class Veiled(Linear):
        def state(self):
            return {name: held.as_subclass(Hidden) for name, held in super().state().items()}

    assert defects("linear", Veiled) == []


@pytest.mark.parametrize(
    ("state", "said"),
    [({}, r"state() has []"), ({"weight": torch.ones(1)}, "state() has 4 bytes, nbytes() says")],
)
def test_a_state_that_is_not_what_is_held(defects, state, said) -> None:
    class Liar(Linear):
        def state(self):
            return state

        def nbytes(self):
            return sum(tensor.nbytes for tensor in Linear.state(self).values())

    assert said in defects("linear", Liar)[0]


def leaking(spec, facts):
    kept = []

    def norm(x, weight):
        out = rms_norm(x, weight, spec.eps, spec.weight_offset)
        kept.append(out.clone())
        return out

    return norm


def caching(spec, facts):
    """Keeps the same for all calls."""
    kept = {}

    def norm(x, weight):
        scratch = kept.setdefault(x.shape, torch.empty_like(x))
        return scratch.copy_(rms_norm(x, weight, spec.eps, spec.weight_offset)).clone()

    return norm


def tired(spec, facts):
    calls = iter(range(2))

    def norm(x, weight):
        next(calls)
        return rms_norm(x, weight, spec.eps, spec.weight_offset)

    return norm


@pytest.mark.parametrize(
    ("build", "defect"),
    [
        (leaking, "4 calls left 4 tensors behind"),
        (caching, ""),
        (build_norm, ""),
        (tired, "a later call raises StopIteration"),
    ],
)
def test_memory_of_every_call_that_is_kept(build, defect: str) -> None:
    suite = SUITES["rms_norm"]
    problem = suite.problem(suite.grid(())[0], torch.Generator())
    candidate = Candidate("rms_norm", "mine", lambda s, f: accept(1), build)
    gc.collect()  # what other tests left, and would be missing at the second count
    assert hoard(candidate, SPEC, HOST, problem).startswith(defect)
    assert bool(hoard(candidate, SPEC, HOST, problem)) == bool(defect)


def test_claims_of_numerics_are_tested(run, defects) -> None:
    def near(spec, facts):
        exact = build_norm(spec, facts)
        return lambda x, weight: exact(x, weight) * (1 + 2**-18)

    def same(spec, facts):
        return build_norm(spec, facts)

    assert defects("rms_norm", same, tolerance=0) == []
    found = defects("rms_norm", near, tolerance=0)
    assert any("claims the reference's bits, but" in defect for defect in found)
    errors = [outcome.error for outcome in run("rms_norm", near)]
    assert defects("rms_norm", near, tolerance=1.0) == []
    low = defects("rms_norm", near, tolerance=min(error for error in errors if error) / 2)
    assert low
    assert "claims a tolerance of" in low[0]
