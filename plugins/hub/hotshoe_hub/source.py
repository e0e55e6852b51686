"""Fetches from the Hugging Face Hub, into the cache that other tools share.

Files are chosen by kind: what describes a model and its tokenizer, and safetensors; or the GGUF
files of one variant. Neither code nor pickles are ever fetched. Tokens, proxies, mirrors and
offline mode are the client library's own (`hf auth login`, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE).
Source of names and files: https://huggingface.co/docs/huggingface_hub
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import tqdm

from hotshoe.errors import CheckpointError
from hotshoe.models.source import FoundModel, WantedModel

_log = logging.getLogger(__name__)
#: How long a question may take that only saves a later error.
PROBE_S = 5.0
COMMIT = re.compile(r"[0-9a-f]{40}")
#: "organization/model"; a path begins with "/", "." or "~".
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
DESCRIPTION = ["*.json", "*.jinja", "*.txt", "*.model"]
WEIGHTS = ["*.safetensors"]
#: Files that are a model each, one of which a variant names: what may stand before the variant, in
#: the folder or in one below it, and behind it. So F16 is neither BF16 nor an encoder of images.
BEGINNINGS, ENDINGS = ("", "*/", "*-", "*."), (".gguf", "-?????-of-?????.gguf")
OTHER_THAN_VARIANTS = ["*/*/*", "*mmproj*"]
#: Whatever lies in folders; another form of weights, which counts where there is no config.json.
FOLDERS = "*/*"
CONSOLIDATED, PARAMS = "consolidated*.safetensors", "params.json"

#: First match counts: what went wrong, and the remedy.
FAILURES: list[tuple[type[Exception], str]] = [
    (
        GatedRepoError,
        "its owners let only those in who have accepted their terms; do so on its page, then log "
        "in with `hf auth login` or set HF_TOKEN",
    ),
    (
        RepositoryNotFoundError,
        "the Hub knows no such model, or it is private; check the name, and for a private one log "
        "in with `hf auth login` or set HF_TOKEN",
    ),
    (RevisionNotFoundError, "it has no such revision; leave out --revision, or name one it has"),
    (
        LocalEntryNotFoundError,
        "the Hub cannot be reached, and not all of it was fetched before; check the network, or "
        "give a local directory",
    ),
]


class NoBar(tqdm):  # type: ignore[misc]
    """Shows nothing: small files come in a moment."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})


def fetch(wanted: WantedModel) -> FoundModel | None:
    """See `hotshoe.models.source.ModelSource`."""
    if not NAME.fullmatch(wanted.name):
        return None
    if wanted.probe:
        return _probed(wanted)
    try:
        path = _download(wanted)
        if wanted.weights and _is_consolidated(Path(path)):
            path = _download(wanted, consolidated=True)
    except Exception as error:  # the library lets through what its transports raise
        raise CheckpointError(failure(_title(wanted), error)) from error
    return FoundModel(Path(path), Path(path).name)  # a snapshot's folder is named by its commit


def _probed(wanted: WantedModel) -> FoundModel:
    """Ask the Hub whether it has a model; what it does not answer is left to fetching.

    Raises:
        CheckpointError: It has no such model or revision, or shows it to nobody unknown.
    """
    revision = wanted.revision
    if revision is None or not COMMIT.fullmatch(revision):  # a commit may be here already
        try:
            revision = HfApi().model_info(wanted.name, revision=revision, timeout=PROBE_S).sha
        except (RepositoryNotFoundError, RevisionNotFoundError) as error:
            if isinstance(error, RevisionNotFoundError) or not _was_fetched(wanted):
                raise CheckpointError(failure(_title(wanted), error)) from error
        except Exception as error:  # no network, a slow one, or offline mode
            _log.debug("the Hub was not asked for %s: %s", wanted.name, error)
    return FoundModel(Path(wanted.name), revision or "main")


def _was_fetched(wanted: WantedModel) -> bool:
    """Tell whether what describes a model is here, so that `fetch` does without the Hub."""
    try:
        _download(wanted, local_files_only=True)
    except Exception:  # the library lets through what it finds broken
        return False
    return True


def _is_consolidated(folder: Path) -> bool:
    """Tell whether a model's publisher has its own form alone."""
    return (folder / PARAMS).exists() and not (folder / "config.json").exists()


def _download(wanted: WantedModel, consolidated: bool = False, **options: bool) -> str:
    """Return the folder of a snapshot; see the library's `snapshot_download`.

    Files in Mistral's own form are left out unless they are asked for.
    """
    others = [FOLDERS] if consolidated else [FOLDERS, CONSOLIDATED]
    path: str = snapshot_download(
        wanted.name,
        revision=wanted.revision,
        cache_dir=wanted.folder,
        allow_patterns=_patterns(wanted),
        ignore_patterns=others if wanted.variant is None else OTHER_THAN_VARIANTS,
        tqdm_class=tqdm if wanted.weights or wanted.variant else NoBar,
        **options,
    )
    return path


def _patterns(wanted: WantedModel) -> list[str]:
    """Return which files are wanted; a variant's file describes itself."""
    if wanted.variant is not None:
        letters = (f"[{c.lower()}{c.upper()}]" if c.isalpha() else c for c in wanted.variant)
        name = "".join(letters)
        return [f"{begins}{name}{ends}" for begins in BEGINNINGS for ends in ENDINGS]
    return DESCRIPTION + WEIGHTS if wanted.weights else DESCRIPTION


def _title(wanted: WantedModel) -> str:
    revision = f" (revision {wanted.revision})" if wanted.revision else ""
    return f"{wanted.name}{revision}"


def failure(title: str, error: Exception) -> str:
    """Say why something cannot be fetched, and what to do."""
    first = (str(error).splitlines() or [""])[0]
    other = f"{type(error).__name__}: {first}; what has arrived is kept, so try again"
    reason = next((text for kind, text in FAILURES if isinstance(error, kind)), other)
    return f"{title} cannot be fetched: {reason}"
