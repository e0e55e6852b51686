"""`/tokenizer_info`, served with `--enable-tokenizer-info-endpoint` alone.

The chat template may be the operator's own, and a secret; so nobody is told without being asked.
"""

from __future__ import annotations

from msgspec import Struct

from hotshoe_server.call import Call
from hotshoe_server.extensions import Endpoint


class TokenizerInfo(Struct):
    """What a model's directory says of its tokenizer.

    `added_tokens_decoder` has the tokens that are no text, by id.
    """

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    chat_template: str | dict[str, str] | None
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    pad_token: str | None
    added_tokens_decoder: dict[str, dict[str, object]]


async def tokenizer_info(call: Call) -> TokenizerInfo:
    """Tell of the first model's tokenizer.

    Raises:
        RequestError: There is none.
    """
    tokenizer = call.served.renderer.tokenizer
    named, templates = tokenizer.special_tokens, tokenizer.chat_templates
    only = templates["default"] if templates.keys() == {"default"} else templates or None
    return TokenizerInfo(
        "PreTrainedTokenizerFast",
        tokenizer.vocab_size,
        call.served.client.info.max_model_len,
        only,
        *(named.get(f"{name}_token") for name in ("bos", "eos", "unk", "pad")),
        {
            str(token_id): {"content": text, "special": True}
            for token_id, text in sorted(tokenizer.special_token_texts.items())
        },
    )


ENDPOINTS = [
    Endpoint(
        "GET",
        "/tokenizer_info",
        tokenizer_info,
        "The tokenizer and the chat template",
        answer=TokenizerInfo,
    )
]
