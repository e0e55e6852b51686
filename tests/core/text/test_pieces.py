"""Token pieces: what each decoder makes of a first and of a later token."""

import pytest
from tokenizers import Regex, Tokenizer, decoders, models

from hotshoe.errors import CheckpointError
from hotshoe.text.pieces import TokenPieces

TOKENS = ["Ġthe", "▁the", "▁", "<0xC3>", "<0xG3>", "##ing", "dog", "n't", "é", "日"]
LLAMA = decoders.Sequence(
    [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
)


def make(decoder):
    backend = Tokenizer(models.WordLevel({t: i for i, t in enumerate(TOKENS)}, unk_token="dog"))
    if decoder is not None:
        backend.decoder = decoder
    return backend


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.ByteLevel(),
        decoders.Metaspace(),
        decoders.Metaspace(prepend_scheme="never"),
        decoders.WordPiece(),
        decoders.WordPiece(prefix="##", cleanup=False),
        decoders.Sequence([decoders.Strip("d", 1, 1), decoders.Replace("t", "$&")]),
        LLAMA,
    ],
)
def test_pieces_join_to_the_librarys_text(decoder):
    backend = make(decoder)
    pieces = TokenPieces(backend)
    complete = [i for i, t in enumerate(TOKENS) if t not in ("<0xC3>", "é")]
    for first in complete:
        for later in complete:
            joined = pieces.make(first, first=True) + pieces[later]
            assert joined.decode() == backend.decode([first, later])


def test_bytes_of_partial_characters_and_unknown_ids():
    assert TokenPieces(make(LLAMA))[TOKENS.index("<0xC3>")] == b"\xc3"
    assert TokenPieces(make(decoders.ByteLevel()))[TOKENS.index("é")] == b"\xe9"
    pieces = TokenPieces(make(None))
    assert pieces[10**6] == b"" and pieces.make(10**6, first=True) is None
    assert not pieces, "whoever names unknown ones would fill it"


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.CTC(),
        decoders.BPEDecoder(),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("a", "b")]),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
    ],
)
def test_decoders_that_look_at_neighbors_are_refused(decoder):
    with pytest.raises(CheckpointError, match="token by token"):
        TokenPieces(make(decoder))


def test_a_regular_expression_is_refused():
    with pytest.raises(CheckpointError, match="has a regular expression as its pattern"):
        TokenPieces(make(decoders.Replace(Regex("(a+)+$"), "x")))


def test_a_decoder_that_multiplies_is_refused():
    steps = [decoders.Replace("e", "e" * 10)] * 9
    with pytest.raises(CheckpointError, match="its decoder can make 1000000000 characters of one"):
        TokenPieces(make(decoders.Sequence(steps)))
