"""Write the CUDA libraries that torch's wheel for Arm wants and a processor alone does not need.

`python tools/absent_libraries.py FOLDER` reads the libraries in FOLDER and writes the missing ones
that they name. Each of their functions returns `cudaErrorNoDevice`. Called by `arm_root.sh`, for
tests under emulation alone. Needs readelf and aarch64-linux-gnu-gcc.
"""

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

NVIDIA = re.compile(r"(lib|_*)(cu|nv|nccl)")
NO_DEVICE = "mov w0, #100\nret\n"


def read(option: str, library: Path) -> str:
    command = ["readelf", "--wide", option, str(library)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def absent(folder: Path) -> tuple[list[str], dict[str, str], set[tuple[str, str]]]:
    """Return names of libraries, the library of each version, and functions with their versions."""
    needed: set[str] = set()
    homes: dict[str, str] = {}
    wanted: set[tuple[str, str]] = set()
    given: set[str] = set()
    home = ""
    for library in folder.glob("*.so*"):
        needed |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", read("--dynamic", library)))
        for line in read("--version-info", library).splitlines():
            if found := re.search(r"Version: 1 +File: (\S+)", line):
                home = found[1]
            elif found := re.search(r"Name: (\S+) +Flags: \S+ +Version", line):
                homes[found[1]] = home
        for line in read("--dyn-syms", library).splitlines():
            if len(fields := line.split()) >= 8 and fields[0][0].isdigit():
                name, _, version = fields[7].partition("@")
                if fields[6] == "UND":
                    wanted.add((name, version))
                else:
                    given.add(name)
    missing = [name for name in sorted(needed) if NVIDIA.match(name)]
    missing = [name for name in missing if not (folder / name).exists()]
    return missing, homes, {(name, version) for name, version in wanted if name not in given}


def write(library: Path, versions: dict[str, list[str]]) -> None:
    names = [name for names in versions.values() for name in names]
    labels = "".join(f".global {n}\n.type {n}, %function\n{n}:\n" for n in names)
    nodes = (
        f"{version} {{ {'global: ' if names else ''}{''.join(f'{n}; ' for n in names)}}};\n"
        for version, names in versions.items()
        if version
    )
    with tempfile.TemporaryDirectory() as scratch:
        source, script = Path(scratch, "functions.s"), Path(scratch, "versions")
        source.write_text(f".text\n{labels}{NO_DEVICE}")
        script.write_text("".join(nodes))
        options = [f"-Wl,--version-script,{script}"] if script.stat().st_size else []
        command = ["aarch64-linux-gnu-gcc", "-shared", "-nostdlib", f"-Wl,-soname,{library.name}"]
        subprocess.run([*command, *options, "-o", str(library), str(source)], check=True)


def main() -> None:
    folder = Path(sys.argv[1])
    missing, homes, wanted = absent(folder)
    versions: dict[str, dict[str, list[str]]] = {name: defaultdict(list) for name in missing}
    for version, home in homes.items():
        if home in versions:
            versions[home][version] = []
    for name, version in sorted(wanted):
        # Functions without a version may be in any library.
        home = homes.get(version, "") if version else missing[0] if missing else ""
        if home in versions and (version or NVIDIA.match(name)):
            versions[home][version].append(name)
    for name in missing:
        write(folder / name, versions[name])
    print(f"{len(missing)} libraries for CUDA are empty ones")


if __name__ == "__main__":
    main()
