"""Which vendor's devices the installed PyTorch was built for, without importing it.

PyTorch is one distribution of one name for all; its `version.py` says what a build is for.
"""

import ast
import importlib.util
from collections.abc import Mapping
from pathlib import Path


def torch_build() -> Mapping[str, str | None]:
    """Return the constants of `torch/version.py`, such as "hip", "xpu" and "__version__".

    What a build lacks is None; without torch, nothing is there.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    return constants(Path(spec.origin).with_name("version.py").read_text(encoding="utf-8"))


def constants(source: str) -> dict[str, str | None]:
    """Return the module-level names that a source sets to text or None."""
    found: dict[str, str | None] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Constant):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            value = node.value.value
            if isinstance(target, ast.Name) and (value is None or isinstance(value, str)):
                found[target.id] = value
    return found
