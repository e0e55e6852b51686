"""Write docs/reference/support.md, what the kernels of every installed platform serve.

`make reference` runs it; a test fails when the page is not what it would write.
"""

import sys
from pathlib import Path

from hotshoe.plugins import PluginManager
from hotshoe_conformance.support import page

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/support.md"
NOTE = "<!-- Written by tools/make_support.py; `make reference` writes it anew. -->"
PROVED = """
The tables below say what candidates promise, not what has been seen. Run on hardware so far:
CPUs with AVX2, AVX-512 and AMX, and NVIDIA's H100 and H200. For every other NVIDIA part, and for
all AMD and Intel GPUs, kernels have been compiled, interpreted or simulated, but **not run**."""
#: Platforms of this repository; others that happen to be installed are left out.
OURS = ("hotshoe",)


def text() -> str:
    """Return the page."""
    own = PluginManager()
    foreign = [r.name for r in own.records if not r.distribution.startswith(OURS)]
    return page(PluginManager(disabled=foreign), f"{NOTE}\n{PROVED}")


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
