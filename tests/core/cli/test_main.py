"""Dispatch, exit codes and one-line errors; and that help loads nothing heavy."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hotshoe import __version__
from hotshoe.cli import main as module
from hotshoe.cli.command import CommandEntry
from hotshoe.cli.main import main
from hotshoe.errors import ConfigError, EngineError
from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import EntryPoint, installed_entry_points

HEAVY = ("torch", "numpy", "yaml", "tokenizers", "transformers", "jinja2", "asyncio", "msgspec")


class Raising:
    """A command that does nothing but raise."""

    error: BaseException = RuntimeError()

    def add_arguments(self, parser) -> None:
        pass

    def run(self, args) -> int:
        raise type(self).error


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch):
    """Let `hotshoe raise` raise a given exception."""

    class Plugins:
        records = ()

        def mapping(self, hook: str) -> dict[str, CommandEntry]:
            return {"raise": CommandEntry(Raising, "raise")}

    def arm(error: BaseException) -> None:
        monkeypatch.setattr(Raising, "error", error)

    monkeypatch.setattr(module, "PluginManager", lambda disabled: Plugins())
    return arm


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(hotshoe, words: list[str]) -> None:
    ran = hotshoe(*words)
    assert ran.code == 0
    assert "[--version] [--traceback]" in ran.out
    for name in ("generate", "chat", "platforms", "plugins", "explain", "bench latency"):
        assert f"  {name} " in ran.out


def test_version(hotshoe) -> None:
    assert hotshoe("--version") == (0, f"hotshoe {__version__}\n", "")


@pytest.mark.parametrize("words", [["bench"], ["bench", "--help"]])
def test_a_group_lists_its_commands(hotshoe, words: list[str]) -> None:
    ran = hotshoe(*words)
    assert ran.code == 0
    assert "bench latency" in ran.out
    assert "platforms" not in ran.out


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["generat"], "generate"),
        (["bench", "latensy"], "bench latency"),
        (["--versoin"], "--version"),
        (["generate", "--max-num-seq", "3"], "--max-num-seqs"),
        (["generate", "--kernal=attention=x"], "--kernel"),
        (["generate", "--hf-override.a", "1"], "--hf-overrides"),
        (["bench", "latency", "--input-length", "3"], "--input-len"),
    ],
)
def test_a_misspelt_word_is_an_error_with_a_suggestion(hotshoe, words, meant: str) -> None:
    ran = hotshoe(*words)
    assert ran.code == 2
    assert ran.out == ""
    assert f"did you mean {meant}?" in ran.err
    assert ran.err.startswith("hotshoe: error: ")
    assert ran.err.count("\n") == 1


def test_a_far_off_command_lists_the_choices(hotshoe) -> None:
    ran = hotshoe("xyzzy")
    assert ran.code == 2
    assert "did you mean" not in ran.err
    listed = ran.err.partition("commands: ")[2].strip("()\n").split(", ")
    assert {"bench", "chat", "explain", "generate", "platforms", "plugins"} <= set(listed)


@pytest.mark.parametrize("name", module.BROUGHT_BY)
def test_a_command_that_is_not_installed_says_who_brings_it(
    hotshoe, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert PluginManager().owner(module.HOOK, name).distribution == module.BROUGHT_BY[name]
    [core] = [point for point in installed_entry_points() if point.name == "core"]
    monkeypatch.setattr(module, "PluginManager", lambda disabled: PluginManager([core]))
    ran = hotshoe(*name.split())
    assert ran.code == 2
    assert f"unknown command '{name}'; install {module.BROUGHT_BY[name]}," in ran.err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("bad option"), 2, "hotshoe: error: bad option\n"),
        (EngineError("it broke"), 1, "hotshoe: error: it broke\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_exit_codes(hotshoe, raising, error, code: int, line: str) -> None:
    raising(error)
    assert hotshoe("raise") == (code, "", line)


def test_what_the_machine_lacks_is_the_users_to_mend(hotshoe, raising) -> None:
    raising(RuntimeError("can't start new thread"))
    result = hotshoe("raise")
    assert result.code == 2 and result.err.startswith("hotshoe: error: the system lets no further")


def test_a_defect_is_not_hidden(raising) -> None:
    raising(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["raise"])


def test_a_library_that_is_missing_is_named(hotshoe, raising) -> None:
    raising(ModuleNotFoundError("No module named 'torch'", name="torch"))
    assert hotshoe("raise").code == 2
    assert "No module named 'torch'" in hotshoe("raise").err
    raising(ModuleNotFoundError("No module named 'hotshoe.nowhere'", name="hotshoe.nowhere"))
    with pytest.raises(ModuleNotFoundError):  # a defect of ours
        main(["raise"])


def test_traceback_on_request(raising) -> None:
    raising(ConfigError("bad option"))
    with pytest.raises(ConfigError):
        main(["raise", "--traceback"])


def test_a_broken_plugin_is_named_beside_an_unknown_command(hotshoe, monkeypatch) -> None:
    def load() -> object:
        raise ImportError("no such library")

    points = [EntryPoint("serving", "hotshoe-serving", "1", load)]
    monkeypatch.setattr(module, "PluginManager", lambda disabled: PluginManager(points))
    ran = hotshoe("serve")
    assert ran.code == 2
    assert "plugin serving is broken: ImportError: no such library" in ran.err


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["generate", "--help"],
        ["chat", "--help"],
        ["bench", "latency", "--help"],
        ["no"],
    ],
    ids=" ".join,
)
def test_help_and_mistakes_import_nothing_heavy(words: list[str]) -> None:
    code = f"""
import sys
from hotshoe.cli.main import main
try:
    main({words})
except SystemExit:
    pass
print("LOADED", [name for name in {HEAVY} if name in sys.modules])
"""
    assert "LOADED []" in run_python(code).stdout


def test_a_reader_that_goes_away_is_no_error(model_dir: Path) -> None:
    command = f"{sys.executable} -m hotshoe.cli generate {model_dir} --platform null -q -p"
    shell = f"set -o pipefail; {command} {'A ' * 3000} --max-tokens 40 | head -c 1 >/dev/null"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == 141


#: Undoes what a shell does to its background jobs, whose children ignore Ctrl-C.
HEEDING_INTERRUPTS = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from hotshoe.cli.main import main; sys.exit(main())"
)


def test_control_c_ends_quietly(model_dir: Path) -> None:
    words = [sys.executable, "-c", HEEDING_INTERRUPTS, "chat", str(model_dir)]
    words += ["--platform", "null"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        report = [process.stderr.readline() for _ in range(2)]
        assert report[1].startswith("ready in")
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in rest


@pytest.mark.parametrize(
    "words",
    [
        ["--disable-plugins", "bad"],
        ["--disable-plugins=bad"],
        ["--disable_plugins", '["bad"]'],
        ["--config", "listed.yaml"],
        ["--config=alone.yaml"],
    ],
)
def test_a_plugin_that_is_left_out_is_never_imported(
    hotshoe, monkeypatch, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "listed.yaml").write_text("disable_plugins: [bad]\n")
    (tmp_path / "alone.yaml").write_text("disable-plugins: bad\n")
    monkeypatch.chdir(tmp_path)
    imported = []
    points = [*installed_entry_points(), EntryPoint("bad", "d", "1", lambda: imported.append(1))]
    kind = module.PluginManager
    monkeypatch.setattr(module, "PluginManager", lambda disabled=(): kind(points, disabled))
    with pytest.raises(SystemExit):
        hotshoe("explain", "demo", *words, "--help")
    assert imported == []
    with pytest.raises(SystemExit):
        hotshoe("explain", "demo", "--help")
    assert imported


def test_plugins_that_would_be_left_out_too_late_are_refused(hotshoe) -> None:
    ran = hotshoe("explain", "demo", "--disable-plugins", "ui", "bench")
    assert ran.code == 2
    assert "give each plugin a flag of its own: --disable-plugins bench" in ran.err


@pytest.mark.parametrize("text", ["disable_plugins: [5]", "disable_plugins: {a: 1}", "[1]", ": :"])
def test_a_file_that_leaves_out_what_is_no_plugin_is_refused(
    hotshoe, tmp_path: Path, text: str
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    ran = hotshoe("explain", "demo", "--config", str(tmp_path / "c.yaml"))
    assert ran.code == 2 and ran.err.startswith("hotshoe: error: ")
