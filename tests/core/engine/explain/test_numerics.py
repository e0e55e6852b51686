"""The hash of numerics: equal for equal bits, and another for whatever may change them."""

from dataclasses import replace

from hotshoe.config import ResolvedConfig
from hotshoe.engine.explain.numerics import numerics, numerics_hash
from hotshoe.platform import DeviceFacts
from hotshoe.slots import REFERENCE, Candidate, Decision, NormSpec, TransferSpec, accept

FACTS = DeviceFacts("p", "cpu", "Chip", "v1", 1 << 30, 4, frozenset({"wide", "fast"}))
CONFIG = ResolvedConfig(
    max_model_len=64,
    distributed_executor_backend="uni",
    block_size=16,
    max_num_batched_tokens=64,
    async_scheduling=False,
)
DECISION = Decision("rms_norm", NormSpec(8, 1e-6, "float32"), "fast", 10, "", ())
FAST = Candidate("rms_norm", "fast", lambda s, f: accept(10), "no:build", package="pack 1.0")


def hashed(config=CONFIG, facts=FACTS, decision=DECISION, candidate=FAST) -> str:
    return numerics_hash(numerics(config, facts, [decision], {"rms_norm/fast": candidate}))


def test_what_changes_bits_changes_the_hash() -> None:
    changed = [
        hashed(),
        hashed(config=replace(CONFIG, dtype="float16")),
        hashed(config=replace(CONFIG, max_num_seqs=3)),
        hashed(facts=replace(FACTS, compute_units=8)),
        hashed(facts=replace(FACTS, features=frozenset({"fast"}))),
        hashed(decision=replace(DECISION, spec=NormSpec(9, 1e-6, "float32"))),
        hashed(candidate=replace(FAST, package="pack 1.1")),
        hashed(candidate=replace(FAST, tolerance=0.5)),
        hashed(candidate=replace(FAST, tolerance=0)),
    ]
    assert len(set(changed)) == len(changed)


def test_what_does_not_leaves_it() -> None:
    assert hashed(config=replace(CONFIG, max_num_queued_reqs=3)) == hashed()
    assert hashed(facts=replace(FACTS, memory_bytes=1)) == hashed()
    alone = replace(CONFIG, batch_invariant=True)
    assert hashed(config=replace(alone, max_num_seqs=3)) == hashed(config=alone)
    bitwise = replace(FAST, tolerance=0)
    assert hashed(candidate=bitwise) == hashed(decision=replace(DECISION, chosen=REFERENCE))
    move = Decision("transfer", TransferSpec(2), "fast", 1, "", ())
    lines = numerics(CONFIG, FACTS, [move, DECISION, DECISION], {"rms_norm/fast": FAST})
    assert lines == numerics(CONFIG, FACTS, [DECISION], {"rms_norm/fast": FAST})
