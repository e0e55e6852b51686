"""Fetches adapters that requests of a server name, where its operator allows that.

Nothing but the two files of an adapter is ever fetched, and their sizes are asked for first.
Source of the files: PEFT's checkpoint format.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    RepositoryNotFoundError,
)

from hotshoe.errors import CheckpointError
from hotshoe.models.source import ADAPTER_FILES
from hotshoe_hub.source import NAME, PROBE_S, NoBar, failure

#: Of both files. Rank 64 of all matrices of a 70B takes 1.7 GB in 16 bits.
MAX_BYTES = 2**32


def find_adapter(name: str, folder: Path | None) -> Path | None:
    """See `hotshoe.models.source.AdapterResolver`: names are those of repositories, OWNER/REPO.

    The files are those whose sizes were told: a commit's, not a branch's, which may change. Where
    the Hub cannot be asked, an adapter serves that the operator has downloaded (`hf download`).
    """
    if not NAME.fullmatch(name):
        return None
    try:
        revision = _checked(name)
    except CheckpointError:
        raise
    except RepositoryNotFoundError as error:
        if isinstance(error, GatedRepoError):
            raise CheckpointError(failure(name, error)) from error
        return None
    except Exception:  # no network, or offline mode: the library lets through what transports raise
        return _fetched(name, None, folder, local_files_only=True)
    return None if revision is None else _fetched(name, revision, folder)


def _checked(name: str) -> str | None:
    """Return the commit of an adapter's newest files; None for what is no adapter.

    Raises:
        CheckpointError: They are too large, or nothing says how large they are.
    """
    info = HfApi().model_info(name, timeout=PROBE_S, files_metadata=True)
    sizes = {file.rfilename: file.size for file in info.siblings or ()}
    if ADAPTER_FILES[0] not in sizes:
        return None
    own = [sizes.get(file, 0) for file in ADAPTER_FILES]
    total = sum(size for size in own if size is not None)
    if None in own or total > MAX_BYTES:
        said = "sizes that nobody knows" if None in own else f"{total} bytes"
        raise CheckpointError(
            f"{name} is not fetched: its adapter has {said}, and {MAX_BYTES} are allowed"
        )
    revision: str | None = info.sha
    return revision


def _fetched(
    name: str, revision: str | None, folder: Path | None, local_files_only: bool = False
) -> Path | None:
    try:
        path = snapshot_download(
            name,
            revision=revision,
            cache_dir=folder,
            allow_patterns=list(ADAPTER_FILES),
            tqdm_class=NoBar,
            local_files_only=local_files_only,
        )
    except Exception as error:  # as above
        raise CheckpointError(failure(name, error)) from error
    found = Path(path)
    return found if (found / ADAPTER_FILES[0]).is_file() else None
