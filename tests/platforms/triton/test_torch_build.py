"""What a build of PyTorch is for, read from its source."""

import importlib.util

import torch

from hotshoe_triton.torch_build import constants, torch_build

ROCM = """
from typing import Optional
__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'xpu']
__version__ = '2.11.0+rocm7.1'
debug = False
cuda: Optional[str] = None
hip: Optional[str] = '7.1.25424'
xpu: Optional[str] = None
"""


def test_constants() -> None:
    found = constants(ROCM)
    assert found == {
        "__version__": "2.11.0+rocm7.1",
        "cuda": None,
        "hip": "7.1.25424",
        "xpu": None,
    }


def test_the_build_that_is_here() -> None:
    found = torch_build()
    assert found["__version__"] == torch.__version__
    assert found["cuda"] == torch.version.cuda
    assert found["hip"] == torch.version.hip
    assert found["xpu"] == torch.version.xpu


def test_no_torch(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert torch_build() == {}
