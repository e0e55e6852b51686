"""The plugin is found, and finding it loads no web library."""

import subprocess
import sys

from hotshoe.plugins import PluginManager


def test_the_command_is_offered() -> None:
    assert {"serve", "run-batch"} <= PluginManager().mapping("hotshoe_commands").keys()


def test_no_web_library_for_the_plugin_or_the_help() -> None:
    code = (
        "import sys; from hotshoe.cli.main import main; main(['serve', '--help']); "
        "heavy = {'starlette', 'uvicorn', 'pydantic', 'torch'} & set(sys.modules); "
        "print(heavy, file=sys.stderr); sys.exit(bool(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--admin-socket" in done.stdout
