"""What a clone without its large files holds instead of them."""

from pathlib import Path

import pytest

from hotshoe.models.pointers import pointer_hint


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", True),
        (b"", False),
        (b"version https://git-lfs", False),
        (b"{}", False),
    ],
)
def test_pointers_are_recognized(tmp_path: Path, content: bytes, hint: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert ("git lfs pull" in pointer_hint(path)) == hint
