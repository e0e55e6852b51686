"""Late interaction: a text has a vector for each token, and two texts are compared by all of them.

Source: Khattab and Zaharia 2020, "ColBERT", arXiv:2004.12832.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LateInteraction:
    """How a model reads queries and documents. Tokens are ids.

    Attributes:
        query, document: Markers behind the first token of each; None for none.
        mask: What fills a query up to `query_length`; None where nothing does.
        mask_seen: Tokens attend to what fills a query.
        skipped: Tokens of documents, such as commas, whose vectors do not count.
    """

    query: int | None = None
    document: int | None = None
    query_length: int = 32
    mask: int | None = None
    mask_seen: bool = True
    skipped: tuple[int, ...] = ()

    @property
    def unseen(self) -> int | None:
        """The token whose run at the end of a prompt no token attends to; None for none."""
        return None if self.mask_seen else self.mask

    def of_query(self, ids: Sequence[int]) -> list[int]:
        """Return the tokens of a query, given those of its text with special ones around it."""
        marked = _marked(ids, self.query)
        if self.mask is None:
            return marked
        return marked + [self.mask] * max(0, self.query_length - len(marked))

    def of_document(self, ids: Sequence[int]) -> list[int]:
        """Return the tokens of a document, likewise."""
        return _marked(ids, self.document)


def _marked(ids: Sequence[int], marker: int | None) -> list[int]:
    return [*ids] if marker is None else [*ids[:1], marker, *ids[1:]]
