"""What sentence-transformers' files say beside the modules: prompts, lengths, how vectors compare.

Sources of the formats: config_sentence_transformers.json and sentence_bert_config.json, as
sentence-transformers writes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast, get_args

from hotshoe.errors import CheckpointError
from hotshoe.models.config import read_json
from hotshoe.types.instructions import Instructions, Similarity

SENTENCES, LENGTH = "config_sentence_transformers.json", "max_seq_length"
#: Names that the file of a length has had.
TRANSFORMERS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
#: Names that similarities have had.
_OLD = {"dot_score": "dot", "cos_sim": "cosine"}


def read_instructions(path: Path) -> Instructions:
    """Read the prompts of the model in a directory, and how its vectors are compared.

    Raises:
        CheckpointError: Prompts are malformed, the default is none of them, or vectors are compared
            by a function that is not served here.
    """
    values = read_json(path / SENTENCES) if (path / SENTENCES).is_file() else {}
    prompts, default = values.get("prompts") or {}, values.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(x, str) for x in prompts.values()):
        raise CheckpointError(f"{path / SENTENCES}: prompts must be an object of texts")
    if default is not None and default not in prompts:
        raise CheckpointError(
            f"{path / SENTENCES}: default_prompt_name {default!r} is none of its prompts"
        )
    return Instructions(prompts, default, _similarity(path, values))


def _similarity(path: Path, values: dict[str, Any]) -> Similarity:
    named = values.get("similarity_fn_name") or "cosine"
    found = _OLD.get(named, named) if isinstance(named, str) else named
    if found not in get_args(Similarity):
        raise CheckpointError(
            f"{path / SENTENCES}: similarity_fn_name {found!r} is unknown; known: "
            f"{', '.join(get_args(Similarity))}"
        )
    return cast(Similarity, found)


def read_length(path: Path) -> int | None:
    """Read how many tokens a text of the model in a directory may have; None if nothing says it.

    Raises:
        CheckpointError: That is no number of tokens.
    """
    for name in TRANSFORMERS:
        if (path / name).is_file():
            found = read_json(path / name).get(LENGTH)
            if found is not None and (type(found) is not int or found < 1):
                raise CheckpointError(
                    f"{path / name}: {LENGTH} must be a positive integer, not {found!r}"
                )
            return found
    return None
