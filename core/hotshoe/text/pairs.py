"""Two texts as one prompt, for models that read a query and a document at once."""

from __future__ import annotations

from hotshoe.text.tokenizer import Tokenizer

#: The roles of both texts in a template for pairs, as vLLM's templates name them.
ROLES = ("query", "document")


def pair_text(
    tokenizer: Tokenizer, pair: tuple[str, str], separated: bool, templated: bool, marked: bool
) -> tuple[str | tuple[str, str], bool]:
    """Return what is tokenized of a pair, and whether special tokens are to be added.

    Args:
        tokenizer: Of the model.
        pair: The query and the document.
        separated: See `hotshoe.types.classes.Classifier`.
        templated: The tokenizer's chat template is one of pairs, whose messages have `ROLES`.
        marked: Control tokens that the texts spell are text, for `Tokenizer.encode` to know.

    Raises:
        RequestError: The template refuses the texts.
    """
    if templated:
        messages = [{"role": role, "content": text} for role, text in zip(ROLES, pair, strict=True)]
        render = tokenizer.render_marked if marked else tokenizer.apply_chat_template
        return render(messages), False
    if not separated:
        text = "".join(pair)
        return tokenizer.mark(text) if marked else text, True
    query, document = tokenizer.mark(pair) if marked else pair
    return (query, document), True
