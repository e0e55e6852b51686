"""What is trained on is, character by character and token by token, what a server sends."""

import transformers
from demo_data.chat import CHAT_TEMPLATE, segments
from demo_data.mixture import conversation

from hotshoe_demo import MODEL


def test_segments_equal_the_template(worlds) -> None:
    tok = transformers.AutoTokenizer.from_pretrained(MODEL)
    assert tok.chat_template == CHAT_TEMPLATE
    for world in worlds(300):
        made = conversation(world)
        pieces = segments(made)
        messages, last = made.messages, len(pieces)
        if made.thought:
            messages, last = messages[:-1], -2
        text = tok.apply_chat_template(
            messages,
            tools=made.tools or None,
            tokenize=False,
            add_generation_prompt=bool(made.thought),
            enable_thinking=bool(made.thought),
        )
        assert "".join(piece for piece, _ in pieces[:last]) == text


def test_pieces_encode_as_the_whole_does(worlds, tokenizer) -> None:
    for world in worlds(300):
        pieces = segments(conversation(world))
        apart = [i for piece, _ in pieces for i in tokenizer.encode(piece).ids]
        assert tokenizer.encode("".join(piece for piece, _ in pieces)).ids == apart


def test_only_answers_are_learned(worlds) -> None:
    for world in worlds(100):
        made = conversation(world)
        learned = [piece for piece, is_learned in segments(made) if is_learned]
        assert len(learned) == sum(m["role"] == "assistant" for m in made.messages)
        assert all(piece.endswith("<|im_end|>") for piece in learned)
