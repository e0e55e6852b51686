"""Fields of OpenAI and vLLM that have no effect here: accepted where they ask for nothing.

They are declared, so that clients which send every field at its default are served, and refused by
name where they ask for something. No more than data; `Generation` looks at them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotshoe_server.schemas.base import Schema, ShortText

#: vLLM's fields that mean nothing here -> the values that ask for nothing, and what to do instead.
FOREIGN: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "guided_json": ((), "use structured_outputs.json"),
    "guided_regex": ((), "use structured_outputs.regex"),
    "guided_choice": ((), "use structured_outputs.choice"),
    "guided_grammar": ((), "use structured_outputs.grammar"),
    "guided_json_object": ((False,), "use structured_outputs.json_object"),
    "guided_decoding_backend": ((), "the server chooses (--structured-output-backend)"),
    "guided_whitespace_pattern": ((), "leave it out"),
    "logits_processors": (([],), "give arguments to those of --logits-processors (vllm_xargs)"),
    "kv_transfer_params": (({},), "leave it out"),
    "mm_processor_kwargs": (({},), "leave it out"),
    "media_io_kwargs": (({},), "leave it out"),
    "ec_transfer_params": (({},), "leave it out"),
    "watermarking": ((False,), "leave it out"),
    "routed_experts_prompt_start": ((0,), "leave it out"),
    "return_token_offsets": ((False,), "leave it out"),
    "return_prompt_text": ((False,), "ask for return_token_ids, and /detokenize the prompt's"),
    "stream_interval": ((1,), "leave it out; a stream brings the tokens of each step at once"),
}


class Foreign(Schema):
    """Fields that every request for tokens may have."""

    # Of no effect: who asks, and what is left out of answers that have none of it.
    user: ShortText | None = None
    session_id: ShortText | None = None
    return_mm_kwargs: bool | None = None

    # Refused: see FOREIGN.
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_json_object: Any = None
    guided_decoding_backend: Any = None
    guided_whitespace_pattern: Any = None
    logits_processors: Any = None
    kv_transfer_params: Any = None
    mm_processor_kwargs: Any = None
    media_io_kwargs: Any = None
    ec_transfer_params: Any = None
    watermarking: Any = None
    routed_experts_prompt_start: Any = None
    return_token_offsets: Any = None
    return_prompt_text: Any = None
    stream_interval: Any = None
