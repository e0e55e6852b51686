"""Log probabilities as the two APIs have them."""

import math

from hotshoe.types import TokenLogprobs
from hotshoe_server.logprobs import (
    LOWEST,
    CompletionLogprobsWriter,
    chat_logprobs,
    joined,
    prompt_logprobs,
    token_text,
)


def test_parts_of_characters_are_named_by_their_bytes(tokenizer) -> None:
    ids = tokenizer.encode("日", add_special_tokens=False)
    texts = [token_text(tokenizer, token_id) for token_id in ids]
    pieces = b"".join(tokenizer.pieces[token_id] for token_id in ids)
    assert pieces.decode() == "日"
    if len(ids) > 1:
        assert texts[0].startswith("bytes:\\x")


def test_infinity_is_a_number(tokenizer) -> None:
    position = TokenLogprobs((5, 6), (-math.inf, -0.5), 9)
    [found] = chat_logprobs(tokenizer, [5], [position]).content
    assert found.logprob == LOWEST
    assert [rival.logprob for rival in found.top_logprobs] == [-0.5]


def test_offsets_go_on_over_writes(tokenizer) -> None:
    writer = CompletionLogprobsWriter(tokenizer)
    ids = tokenizer.encode("Hello there friend", add_special_tokens=False)
    positions = [TokenLogprobs((i,), (-1.0,), 1) for i in ids]
    first = writer.write(ids[:1], [None])
    both = joined(first, writer.write(ids[1:], positions[1:]))
    assert joined(None, first) is first
    assert "".join(both.tokens) == "Hello there friend"
    assert both.token_logprobs[0] is None and both.top_logprobs[0] is None
    for text, offset in zip(both.tokens, both.text_offset, strict=True):
        assert "Hello there friend"[offset:].startswith(text)


def test_the_token_that_came_is_among_the_likely_ones(tokenizer) -> None:
    came, likely, other = tokenizer.encode("Hello there friend", add_special_tokens=False)[:3]
    name = {i: token_text(tokenizer, i) for i in (came, likely, other)}
    for position, found in (
        (TokenLogprobs((came,), (-3.0,), 5), {name[came]: -3.0}),  # logprobs: 0
        (
            TokenLogprobs((came, likely, other), (-3.0, -1.0, -2.0), 5),
            {name[likely]: -1.0, name[other]: -2.0, name[came]: -3.0},
        ),
        (
            TokenLogprobs((came, came, other), (-1.0, -1.0, -2.0), 1),
            {name[came]: -1.0, name[other]: -2.0},
        ),
    ):
        writer = CompletionLogprobsWriter(tokenizer)
        assert writer.write([came], [position]).top_logprobs == [found]


def test_prompts_by_token_id(tokenizer) -> None:
    position = TokenLogprobs((7, 5, 6), (-3.0, -1.0, -2.0), 12)
    first, second = prompt_logprobs(tokenizer, [None, position])
    assert first is None
    assert {i: (e["logprob"], e["rank"]) for i, e in second.items()} == {
        "7": (-3.0, 12),
        "5": (-1.0, 1),
        "6": (-2.0, 2),
    }
    assert second["5"]["decoded_token"] == token_text(tokenizer, 5)
    assert "decoded_token" not in prompt_logprobs(None, [position])[0]["5"]
