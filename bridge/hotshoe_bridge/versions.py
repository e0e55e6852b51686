"""Which versions of a host this is written for: others are refused, with what to do."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version


def require(host: str, packages: Sequence[str], versions: tuple[str, str]) -> None:
    """Check the installed version of a host.

    Args:
        host: As its users call it.
        packages: Distributions that it may be installed from.
        versions: The first that is known, and the first that is not.

    Raises:
        RuntimeError: Another version is installed, or none.
    """
    found = next(filter(None, map(_version, packages)), None)
    least, end = (_numbers(one) for one in versions)
    if found is None or not least <= _numbers(found) < end:
        have = f"{host} {found}" if found else f"no {host}"
        raise RuntimeError(
            f"hotshoe-bridge is written for {host} from {versions[0]} up to, not including, "
            f"{versions[1]}, and here is {have}; install such a version, or a bridge for this one"
        )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version; a part with letters ends them."""
    numbers = []
    for part in text.partition("+")[0].split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
