"""What start-up says: nothing that runs on a reference stays unsaid."""

import errno
import io
from types import SimpleNamespace

from hotshoe.cli.session import describe, failures, phases, reference_lines, report_failures, say
from hotshoe.config import EngineConfig
from hotshoe.plugins import PluginRecord
from hotshoe.slots import REFERENCE, Decision, NormSpec, SampleSpec
from hotshoe.types import CompletionOutput, RequestOutput

DECISIONS = [
    Decision("rms_norm", NormSpec(64, 1e-6, "float32"), "native", 10, "", ()),
    Decision("rms_norm", NormSpec(65, 1e-6, "float32"), REFERENCE, 0, "", ()),
    Decision("rms_norm", NormSpec(66, 1e-5, "float32", 1.0), REFERENCE, 0, "", ()),
    Decision("sample", SampleSpec(9), REFERENCE, 0, "", ()),
]


REPORT = {"threads": 2, "cores": [(0, 1), [2]], "because": ["part 1", "part 2"]}


class Loaded:
    config = EngineConfig(platform="null", dtype="float32")
    memory = {"weights": 3 << 20, "kv_cache": 2000 << 20}
    startup = {"one": 1.0, "two": 0.25}
    decisions = DECISIONS
    plugins = SimpleNamespace(
        records=[
            PluginRecord("a", "", ""),
            PluginRecord("b", "", "", error="no library"),
            PluginRecord("c", "", "", warning="plugin c for hook API 1 is deprecated"),
        ]
    )
    engine = SimpleNamespace(
        core=SimpleNamespace(info=SimpleNamespace(report=REPORT)),
        setup=SimpleNamespace(plugins=plugins),
    )


def test_references_are_named_with_their_shapes() -> None:
    first, second = reference_lines(DECISIONS)
    assert first == (
        "slot rms_norm runs on its plain reference for hidden_size=65 eps=1e-06 dtype=float32; "
        "hidden_size=66 eps=1e-05 dtype=float32 weight_offset=1.0"
    )
    assert second == "slot sample runs on its plain reference for vocab_size=9"


def test_describe() -> None:
    assert describe(Loaded()) == [
        "demo on null (float32): weights 3 MiB, kv_cache 2,000 MiB",
        "platform: threads 2, cores 0,1 | 2, because part 1 | part 2",
        "ready in 1.25 s: one 1.00, two 0.25",
        "plugin b is broken: no library",
        "plugin c for hook API 1 is deprecated",
        *reference_lines(DECISIONS),
    ]
    assert phases({}) == ""


def test_failures(capsys) -> None:
    good = CompletionOutput(0, "", [])
    bad = CompletionOutput(0, "", [], error="bad numbers")
    outputs = [RequestOutput("a", None, [], [good]), RequestOutput("b", None, [], [good, bad])]
    assert failures(outputs) == ["request 2: bad numbers"]
    assert report_failures([]) == 0
    assert report_failures(failures(outputs)) == 1
    assert capsys.readouterr().err == "hotshoe: error: request 2: bad numbers\n"


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_notes_that_nobody_can_read_stop_nothing(monkeypatch) -> None:
    disk = FullDisk()
    monkeypatch.setattr("sys.stderr", disk)
    say("hello")
    assert disk.getvalue() == "hello\n"
