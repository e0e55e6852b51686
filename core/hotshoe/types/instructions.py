"""What stands in front of texts of which vectors are made, such as "query: ", and how such vectors
are compared.

Source of the names: sentence-transformers' prompts; types of input as Cohere and Voyage have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hotshoe.errors import RequestError

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
_QUERY, _DOCUMENT = ("query",), ("document", "passage", "corpus")
#: By type of input, names of prompts; the first that a model has is meant.
INPUT_TYPES: Mapping[str, tuple[str, ...]] = {
    "query": _QUERY,
    "search_query": _QUERY,
    "document": _DOCUMENT,
    "search_document": _DOCUMENT,
    "classification": ("classification",),
    "clustering": ("clustering",),
}


@dataclass(frozen=True, slots=True)
class Instructions:
    """What a model's files name.

    Attributes:
        prompts: By name.
        default: The name of what stands in front of a text if nobody asks; None for nothing.
        similarity: How vectors are compared.
    """

    prompts: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None
    similarity: Similarity = "cosine"

    def chosen(
        self, prompt: str | None = None, name: str | None = None, input_type: str | None = None
    ) -> str:
        """Return what stands in front of a text.

        Args:
            prompt: That itself.
            name: Of one of the model's.
            input_type: A key of `INPUT_TYPES`. A model without a prompt for it has its default.

        Raises:
            RequestError: More than one of them is given, one is no text, or the model has no such
                prompt.
        """
        asked = {"prompt": prompt, "prompt_name": name, "input_type": input_type}
        given = [field for field, value in asked.items() if value is not None]
        for one in given:
            if not isinstance(asked[one], str):
                raise RequestError(f"{one} must be a text, not {asked[one]!r}", one)
        if len(given) > 1:
            raise RequestError(f"{given[0]} and {given[1]} exclude each other", given[1])
        if prompt is not None:
            return prompt
        if name is not None and name not in self.prompts:
            known = ", ".join(sorted(self.prompts)) or "none"
            raise RequestError(
                f"prompt_name {name!r} is no prompt of this model; it has: {known}", "prompt_name"
            )
        if input_type is not None and input_type not in INPUT_TYPES:
            raise RequestError(
                f"input_type {input_type!r} is unknown; known: {', '.join(INPUT_TYPES)}",
                "input_type",
            )
        names = (name, *INPUT_TYPES.get(input_type or "", ()), self.default)
        found = (self.prompts[one] for one in names if one is not None and one in self.prompts)
        return next(found, "")
