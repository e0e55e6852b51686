"""What every request object obeys."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")
MAX_ITEMS = 65536

#: A list that stops at its first mistake, so that a long bad one costs little.
ShortList = Annotated[list[T], Field(max_length=MAX_ITEMS, fail_fast=True)]
ShortText = Annotated[str, Field(max_length=1024)]


class Schema(BaseModel):
    """A JSON object: no unknown name, no conversion between types, finite numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)
