"""`hotshoe doctor`: one page about this machine: versions, limits, what is broken, what would help.

Loads no model, and asks platforms in a process of its own, which may fail or hang without harm.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hotshoe.cli.session import MIB
from hotshoe.cli.table import table
from hotshoe.host import granted_memory, physical_memory
from hotshoe.plugins.survey import survey

OWN = "hotshoe"
#: Name of a requirement, and what stands behind it.
REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(.*)$")
PLATFORMS_S = 120.0
SHARED = Path("/dev/shm")
#: Weights that arrive, and messages of ranks, pass through shared memory.
LEAST_SHARED_BYTES = 64 * MIB
LEAST_FILES = 1024
#: Where the kernel shows devices and drivers, and the classes of devices that compute: displays
#: and processing accelerators.
PCI, MODULES = Path("/sys/bus/pci/devices"), Path("/sys/module")
COMPUTING = ("0x03", "0x12")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line.

    Attributes:
        state: "ok", "absent" (harmless) or "wrong".
        remedy: What to do, if anything.
    """

    topic: str
    name: str
    state: str
    text: str
    remedy: str = ""


class Doctor:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, args: Namespace) -> int:
        found = [*system(), *packages(), *plugins(), *devices(), *platforms()]
        wrong = [finding for finding in found if finding.state == "wrong"]
        if args.json:
            print(json.dumps([asdict(finding) for finding in found]))
        else:
            rows = [(f.topic, f.name, f.state, f.text, f.remedy) for f in found]
            print(table(("topic", "name", "state", "found", "remedy"), rows))
            print(f"\n{len(wrong)} wrong" if wrong else "\nnothing is wrong")
        return 1 if wrong else 0


def system() -> Iterator[Finding]:
    """Look at the interpreter, the machine and its limits."""
    yield Finding("system", "python", "ok", f"{platform.python_version()}, {sys.executable}")
    yield Finding("system", "machine", "ok", f"{platform.platform()}, {os.cpu_count()} processors")
    yield from _memory()
    yield from _shared_memory()
    try:
        with tempfile.TemporaryDirectory() as folder:
            free = shutil.disk_usage(folder).free // MIB
        yield Finding("system", "temporary space", "ok", f"{free:,} MiB in {tempfile.gettempdir()}")
    except OSError as error:
        yield Finding(
            *("system", "temporary space", "wrong", str(error)),
            "free some, or name another place by the variable TMPDIR",
        )
    yield from _open_files()


def _memory() -> Iterator[Finding]:
    total, granted = physical_memory(), granted_memory()
    text = f"{total / MIB:,.0f} MiB"
    if granted < total:
        text += f", of which this process may use {granted / MIB:,.0f}"
    yield Finding("system", "memory", "ok", text)


def _shared_memory() -> Iterator[Finding]:
    if sys.platform != "linux":  # other systems show no such place
        return
    try:
        size = shutil.disk_usage(SHARED).total
    except OSError as error:
        text = f"{SHARED}: {error.strerror}"
        yield Finding("system", "shared memory", "wrong", text, "mount it; ranks meet there")
        return
    small = size < LEAST_SHARED_BYTES
    remedy = "give the container more, such as --shm-size 1g" if small else ""
    state = "wrong" if small else "ok"
    yield Finding("system", "shared memory", state, f"{size / MIB:,.0f} MiB", remedy)


def _open_files() -> Iterator[Finding]:
    try:
        import resource
    except ImportError:  # not on every system
        return
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    few = limit != resource.RLIM_INFINITY and limit < LEAST_FILES
    remedy = f"raise it to {LEAST_FILES} or more (ulimit -n)" if few else ""
    yield Finding("system", "open files", "wrong" if few else "ok", f"{limit} at most", remedy)


def devices() -> Iterator[Finding]:
    """List devices that may compute, by what the kernel says of them: their drivers."""
    for place in sorted(PCI.glob("*")):
        if not _line(place / "class").startswith(COMPUTING):
            continue
        text = f"vendor {_line(place / 'vendor')}, device {_line(place / 'device')}"
        driver = place / "driver"
        if not driver.exists():
            remedy = "install its driver, if it is to compute"
            yield Finding("device", place.name, "absent", f"{text}, no driver", remedy)
            continue
        name = driver.resolve().name
        version = _line(MODULES / name / "version")
        remedy = "if no platform below serves it, install the package of its vendor"
        told = f"{text}, driver {name} {version}".rstrip()
        yield Finding("device", place.name, "ok", told, remedy)


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def packages() -> Iterator[Finding]:
    """List Hotshoe's distributions, and what they require."""
    required: dict[str, set[str]] = {}
    own = {
        dist.name: dist
        for dist in importlib.metadata.distributions()
        if dist.name == OWN or dist.name.startswith(f"{OWN}-")
    }
    for name, dist in sorted(own.items()):
        yield Finding("package", name, "ok", dist.version)
        for line in dist.requires or ():
            found = REQUIREMENT.match(line)
            if found and "extra ==" not in found[2] and found[1] not in own:
                required.setdefault(found[1], set()).add(name)
    for name, users in sorted(required.items()):
        try:
            yield Finding("package", name, "ok", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            text = f"not installed; {', '.join(sorted(users))} needs it"
            yield Finding("package", name, "wrong", text, f"pip install {name}")


def plugins() -> Iterator[Finding]:
    """Name plugins that cannot be used, or will not be much longer."""
    for record in survey().plugin_manager().records:
        if record.error:
            remedy = f"mend it, or --disable-plugins {record.name}"
            yield Finding("plugin", record.name, "wrong", record.error, remedy)
        elif record.warning:
            yield Finding("plugin", record.name, "ok", record.warning)


def platforms() -> Iterator[Finding]:
    """Ask a process for the platforms, as a driver that fails may take it along."""
    words = [sys.executable, "-m", "hotshoe.cli", "platforms", "--json"]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=PLATFORMS_S, check=False
        )
    except subprocess.TimeoutExpired:
        text = f"no answer within {PLATFORMS_S:g} s"
        yield Finding("platform", "all", "wrong", text, "look at drivers; disable one by one")
        return
    try:
        rows: list[dict[str, Any]] = json.loads(done.stdout)
    except ValueError:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        text = f"`hotshoe platforms` ended with code {done.returncode}: {said}"
        yield Finding("platform", "all", "wrong", text, "--disable-plugins finds which one")
        return
    for row in rows:
        state = {"available": "ok", "absent": "absent"}.get(row["status"], "wrong")
        shown = f"{row['device']}, {row['memory']}" if state == "ok" else row["remarks"]
        yield Finding("platform", row["platform"], state, shown)
