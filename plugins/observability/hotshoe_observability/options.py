"""Flags that this plugin adds to `hotshoe serve`. Standard library only, as for every `--help`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from hotshoe.config import check_options, option
from hotshoe.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ObservabilityOptions:
    """What the server tells of itself, and to whom.

    Raises:
        ConfigError: A value is bad.
    """

    metrics: bool = option(True, "serve Prometheus metrics at /metrics")
    metrics_names: str = option(
        "hotshoe",
        "names of metrics; vllm adds those of vLLM to Hotshoe's own",
        choices=("hotshoe", "vllm"),
    )
    otlp_endpoint: str | None = option(
        None, "URL that takes OpenTelemetry traces by OTLP over HTTP; no traces without it"
    )
    profile_dir: str | None = option(
        None, "directory for traces of /start_profile, an admin verb; refused without it"
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.otlp_endpoint is not None:
            parts = urlsplit(self.otlp_endpoint)
            if parts.scheme not in ("http", "https") or not parts.netloc:
                raise ConfigError(
                    "otlp_endpoint must look like http://localhost:4318/v1/traces, "
                    f"not {self.otlp_endpoint!r}"
                )
        if self.profile_dir is not None:
            _check_folder(self.profile_dir)


def _check_folder(name: str) -> None:
    """Refuse a folder that could not be written, or made, when the first profile is wanted.

    Raises:
        ConfigError: It is none, or the nearest folder above it allows nothing new.
    """
    place = Path(name)
    try:
        while not place.exists():
            place = place.parent
    except OSError as error:
        raise ConfigError(f"profile_dir {name} cannot be used: {error.strerror}") from None
    if not place.is_dir():
        raise ConfigError(f"profile_dir {name} cannot be used: {place} is no folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"profile_dir {name} cannot be used: {place} may not be written")
