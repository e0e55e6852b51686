"""A whole run: verdicts, repeatable defects, narrowed runs, whole models."""

import json
import re
import shlex

import pytest
import torch

from hotshoe.cli.main import main
from hotshoe.errors import ConfigError, PlatformError, PluginError, SelectionError
from hotshoe.plugins.manager import EntryPoint, PluginManager, installed_entry_points
from hotshoe.slots import SLOTS, Candidate, NormSpec, accept, refuse
from hotshoe.slots.reference.attention import Attention
from hotshoe.slots.reference.norm import build_norm
from hotshoe_conformance import kit
from hotshoe_conformance.cases import SUITES
from hotshoe_conformance.judge import Outcome
from hotshoe_conformance.kit import Kit, Options
from hotshoe_conformance.report import NATIVE, REFERENCE, REFUSED, UNTESTED, WRONG

QUICK = Options(quick=True, seed=5)


def quarter(spec, facts):
    """Forgets every fourth channel."""

    def norm(x, weight):
        out = build_norm(spec, facts)(x, weight)
        out[:, ::4] = 0
        return out

    return norm


def narrow(spec: NormSpec, facts):
    return accept(9) if spec.hidden_size < 100 and not spec.quant else refuse("too wide")


@pytest.fixture(scope="module")
def report(installed, offer):
    """One right candidate, one wrong, one that always refuses."""

    def never(spec, facts):
        return refuse("never")

    plugins = installed(
        offer("rms_norm", build_norm, narrow),
        Candidate("rms_norm", "quarter", narrow, quarter),
        offer("add_rms_norm", "no:build", never),
        offer("embedding", "hotshoe.slots.reference.embedding:build"),
    )
    return Kit("mine", QUICK, plugins).run()


def test_verdicts(report) -> None:
    verdicts = {slot.slot: slot.verdict for slot in report.slots}
    assert list(verdicts) == list(SLOTS)
    expected = {"rms_norm": WRONG, "add_rms_norm": REFUSED, "embedding": NATIVE}
    expected["communicator"] = UNTESTED  # this platform is for one device
    assert verdicts == {**dict.fromkeys(SLOTS, REFERENCE), **expected}
    [norm] = [slot for slot in report.slots if slot.slot == "rms_norm"]
    mine, quarter, reference = norm.candidates
    assert (mine.name, quarter.name, reference.name) == ("mine", "quarter", "reference")
    assert mine.passed > 5
    assert mine.refused > 2
    assert mine.reasons == {"too wide": mine.refused}
    assert not mine.defects
    assert 0 < mine.error < 1
    assert len(quarter.defects) == 3
    assert "times the tolerance of" in quarter.defects[0].what
    assert "hidden_size=64" in quarter.defects[0].spec
    assert quarter.defects[0].shape.startswith("count=")


def test_a_candidate_that_accepts_nothing_is_named(report) -> None:
    assert list(report.unproved) == ["add_rms_norm/mine"]
    assert report.unproved["add_rms_norm/mine"].endswith("cases: never")


def test_large_cases_are_for_kernels_alone(installed, offer, monkeypatch) -> None:
    """What a reference writes down in between would take many times the memory."""
    judged = []

    def judge(candidate, *arguments, poison):
        judged.append((candidate.name, poison))
        return Outcome(refused="it is enough to be asked")

    monkeypatch.setattr(kit, "judge", judge)
    [large] = [at for at, setup in enumerate(SUITES["rms_norm"].grid(())) if setup.bytes]
    own = installed(offer("rms_norm", build_norm))
    for case, expected in ((large, [("mine", False)]), (0, [("mine", True), ("reference", True)])):
        judged.clear()
        tested = Kit("mine", Options(slot="rms_norm", case=case, seed=5), own)
        monkeypatch.setattr(tested, "_free_bytes", lambda: 1 << 60)
        tested.run()
        assert judged == expected


def test_reports_say_the_same_to_people_and_programs(report) -> None:
    text = report.as_text()
    assert "WRONG rms_norm/quarter: y: 0 instead of" in text
    assert "does not conform: 3 defects" in text
    document = json.loads(json.dumps(report.as_json()))
    assert document["conforms"] is False
    assert [s["verdict"] for s in document["slots"] if s["slot"] == "rms_norm"] == [WRONG]
    assert document["checks"]["greedy tokens of tiny models"] == []


def test_a_defect_comes_with_the_line_that_repeats_it(report, installed, monkeypatch, capsys):
    import hotshoe_conformance.kit as module

    plugins = installed(Candidate("rms_norm", "quarter", narrow, quarter))
    monkeypatch.setattr(module, "PluginManager", lambda: plugins)
    for where, defect in report.defects:
        assert where == "rms_norm/quarter"
        words = shlex.split(defect.repeat)
        assert words[0] == "hotshoe"
        assert main(words[1:]) == 1
        assert defect.what in capsys.readouterr().out


def test_runs_that_are_narrowed(installed, offer) -> None:
    plugins = installed(offer("rms_norm", build_norm, narrow))
    options = Options(slot="rms_norm", candidate="mine", case=1, seed=3)
    report = Kit("mine", options, plugins).run()
    assert report.checks == {"declarations": []}
    [slot] = report.slots
    [mine] = slot.candidates
    assert (mine.passed, mine.refused, mine.shares) == (1, 0, [])
    random = Options(slot="rms_norm", candidate="mine", case=60, seed=3)
    [slot] = Kit("mine", random, plugins).run().slots
    assert slot.candidates[0].passed + slot.candidates[0].refused == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(slot="rms_nrom"), r"unknown slot 'rms_nrom'; did you mean rms_norm\?"),
        (Options(candidate="mien"), r"no candidate 'mien'; did you mean mine\?"),
    ],
)
def test_names_that_do_not_exist(installed, offer, options: Options, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Kit("mine", options, installed(offer("rms_norm", build_norm)))


def test_offers_that_no_engine_could_take(installed, offer) -> None:
    with pytest.raises(SelectionError, match="unknown slot 'norm'"):
        Kit("mine", QUICK, installed(offer("norm", build_norm)))
    with pytest.raises(PluginError, match="unknown platform 'mien'"):
        Kit("mien", QUICK, installed())


def test_plugins_that_are_broken_are_named(installed) -> None:
    broken = PluginManager([*installed_entry_points(), EntryPoint("b", "d", "1", lambda: 1 / 0)])
    said: list[str] = []
    Kit("cpu", Options(slot="sample", case=0), broken, said.append)
    assert said == ["plugin b is broken: ZeroDivisionError: division by zero"]


@pytest.mark.parametrize("method", ["resolve", "candidates", "activate"])
def test_a_platform_that_fails_is_named(installed, method: str) -> None:
    def fail(self, *arguments):
        raise OSError("libvendor.so is missing")

    with pytest.raises(PlatformError, match="platform mine is defective: OSError: libvendor"):
        Kit("mine", QUICK, installed(**{method: fail}))


def test_two_candidates_of_one_name_are_a_defect(installed, offer) -> None:
    twins = installed(offer("rms_norm", build_norm), offer("rms_norm", quarter))
    report = Kit("mine", Options(slot="rms_norm", quick=True), twins).run()
    [defect] = report.checks["declarations"]
    assert defect.what == "rms_norm/mine: two candidates have this name"
    assert ("declarations", defect) in report.defects
    assert not Kit("mine", Options(slot="embedding", quick=True), twins).undeclared


def test_a_time_limit_leaves_cases_out_and_says_so(installed) -> None:
    options = Options(slot="rms_norm", quick=True, seed=5, time_limit_s=0.0)
    report = Kit("mine", options, installed()).run()
    [found] = report.slots[0].candidates
    assert (found.passed, list(found.left_out)) == (0, ["the time limit of 0 s"])
    assert report.as_text().endswith("conforms, as far as it was run")


def test_quick_runs_take_each_case_in_one_type_and_another_with_another_seed(installed) -> None:
    taken = []
    for seed in (6, 7, 8):
        kit = Kit("mine", Options(slot="rms_norm", quick=True, seed=seed), installed())
        fixed = [c for c in kit._cases("rms_norm") if c.index < len(SUITES["rms_norm"].grid(()))]
        assert {c.setup.spec.dtype for c in fixed} == {"float32", "bfloat16", "float16"}
        taken.append({c.index for c in fixed})
    quick = {i for i, setup in enumerate(SUITES["rms_norm"].grid(())) if setup.quick}
    assert set.union(*taken) == quick
    assert sum(map(len, taken)) == len(quick)


def test_quick_runs_compute_in_one_thread_and_give_the_others_back(installed, offer) -> None:
    seen = set()

    def counting(spec, facts):
        seen.add(torch.get_num_threads())
        return build_norm(spec, facts)

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        options = Options(slot="rms_norm", candidate="mine", quick=True, seed=5)
        Kit("mine", options, installed(offer("rms_norm", counting, narrow))).run()
        assert seen == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_models_that_write_something_else(installed, offer) -> None:
    def negated(spec, facts):
        return lambda x, weight: -build_norm(spec, facts)(x, weight)

    plugins = installed(offer("rms_norm", negated, lambda s, f: accept(1)))
    kit = Kit("mine", QUICK, plugins)
    [defect, *_] = kit.run_tokens()
    assert re.search(r"token \d+ is \d+, by .* less likely than \d+", defect.what)
    assert defect.shape.startswith("llama, all at once, prompt of")


def test_models_whose_kernels_give_nan(installed, offer) -> None:
    def nan(spec, facts):
        return lambda x, weight: torch.full_like(x, float("nan"))

    plugins = installed(offer("rms_norm", nan, lambda s, f: accept(1)))
    [defect, *_] = Kit("mine", QUICK, plugins).run_tokens()
    assert "0 of 24 tokens: no token can be sampled" in defect.what


def test_a_layout_that_raises_is_a_defect(installed, offer) -> None:
    class Mute(Attention):
        pass

    declared = offer("attention", Mute, lambda s, f: accept(1), layout=lambda s, f: 1 // 0)
    kit = Kit("mine", Options(slot="attention", case=0, seed=1), installed(declared))
    [(_, defect)] = kit.run().defects
    assert "layout() raises ZeroDivisionError" in defect.what


def test_layouts_are_those_that_attention_declares(installed, offer) -> None:
    from hotshoe.slots import KVLayout

    other = KVLayout("other", "htd", "htd")

    class Liar(Attention):
        pass

    declared = offer("attention", Liar, lambda s, f: accept(1), layout=lambda s, f: other)
    kit = Kit("mine", Options(slot="attention", case=0, seed=1), installed(declared))
    assert kit.layouts == [other]
    [defect] = kit.run().defects
    assert "declares layout KVLayout(name='other'" in defect[1].what
