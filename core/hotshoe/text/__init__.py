"""Text: tokenizers, chat templates, incremental detokenization, stop strings, request outputs.

Free of torch. Used by front ends only; the engine core works on token ids.
"""

from hotshoe.text.bad_words import bad_word_token_ids
from hotshoe.text.output_processor import OutputProcessor, RequestUpdate, SequenceUpdate
from hotshoe.text.tokenizer import Tokenizer

__all__ = [
    "OutputProcessor",
    "RequestUpdate",
    "SequenceUpdate",
    "Tokenizer",
    "bad_word_token_ids",
]
