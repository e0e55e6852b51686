"""The loaded native kernels, and what all candidates ask of a specification.

The build that serves an engine is a feature of its device (`native:avx2`), so every operation of
one engine runs the same one. Called by the candidates' modules.
"""

from types import ModuleType

import hotshoe_native
from hotshoe.platform import DeviceFacts
from hotshoe.slots import Verdict, accept_unless

FEATURE = "native:"
SCORE = 100

#: Codes of element types at the kernels' boundary.
DTYPE_CODES = {"float32": 0, "bfloat16": 1, "float16": 2}


def isa_name(facts: DeviceFacts) -> str | None:
    """Return the chosen build, None where the kernels cannot be used."""
    names = (f.removeprefix(FEATURE) for f in facts.features if f.startswith(FEATURE))
    return next(names, None)


def kernels(facts: DeviceFacts) -> ModuleType:
    """Return the extension module of the chosen build."""
    return hotshoe_native.load(isa_name(facts))


def judge(facts: DeviceFacts, dtype: str, refusals: dict[str, bool] | None = None) -> Verdict:
    """Accept what the kernels can do.

    Args:
        facts: The device; without a build of the kernels everything is refused.
        dtype: The operation's element type.
        refusals: Reasons by which the specification is refused, each with whether it holds.
    """
    isa = isa_name(facts)
    known = {
        "no build of the native kernels can run on this machine": isa is None,
        f"element type {dtype} is not one of {', '.join(DTYPE_CODES)}": dtype not in DTYPE_CODES,
    }
    return accept_unless(known | (refusals or {}), SCORE, f"native kernels, {isa}")
