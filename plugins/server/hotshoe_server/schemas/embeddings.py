"""Requests and answers of `/v1/embeddings`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Struct
from pydantic import Field

from hotshoe.errors import RequestError
from hotshoe.types import PoolingParams
from hotshoe.types.instructions import Instructions
from hotshoe_server.schemas.base import Schema, ShortText, Variables, Wishes
from hotshoe_server.schemas.chat import Conversation
from hotshoe_server.schemas.fields import PromptTokens, RequestId, Side
from hotshoe_server.schemas.parts import Message
from hotshoe_server.schemas.tokens import Nothing

#: Most texts of one request, as OpenAI's API has it.
MAX_INPUTS = 2048


class PooledRequest(Schema):
    """What all requests for vectors have, whatever is made of these."""

    #: How ids of the engine's requests begin.
    PREFIX: ClassVar[str] = "embd"

    model: ShortText | None = None
    #: Default: for a text, but not for a conversation, whose template writes them.
    add_special_tokens: bool | None = None
    priority: int = Field(0, ge=-(2**31), le=2**31 - 1)
    truncate_prompt_tokens: PromptTokens | None = None
    truncation_side: Side | None = None
    request_id: RequestId | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None

    # vLLM's, which must ask for what is done.
    mm_processor_kwargs: Nothing = None

    # OpenAI's, of no effect here.
    user: ShortText | None = None

    def wishes(self) -> Wishes:
        """See `Schema.wishes`."""
        return Wishes(
            request_id=self.request_id,
            cache_salt=self.cache_salt,
            prompt_tokens=self.truncate_prompt_tokens,
            keeps_end=self.truncation_side == "left",
        )

    def lead(self, instructions: Instructions) -> str:
        """Return what stands in front of each text.

        Raises:
            RequestError: The model has no such prompt.
        """
        return instructions.chosen()


class TextRequest(PooledRequest):
    """Texts, token ids or a conversation, of which vectors are made."""

    input: str | list[Any] | None = Field(None, max_length=2**24)
    messages: list[Message] | None = Field(None, max_length=65536, fail_fast=True)
    chat_template: Annotated[str, Field(min_length=1, max_length=65536)] | None = None
    chat_template_kwargs: Variables = None
    documents: list[dict[str, Any]] | None = Field(None, max_length=4096, fail_fast=True)
    add_generation_prompt: bool = False
    continue_final_message: bool = False

    def conversation(self) -> Conversation:
        """Return what a template takes.

        Raises:
            RequestError: There are texts as well.
        """
        if self.input is not None:
            raise RequestError("give either input or messages", "messages")
        names = Conversation.model_fields.keys() & TextRequest.model_fields.keys()
        return Conversation.model_construct(**{name: getattr(self, name) for name in names})

    def inputs(self) -> list[str | list[int]]:
        """Return the texts one by one, each as text or as token ids.

        Raises:
            RequestError: The list is neither of texts, nor of token ids, nor of lists of these; or
                there are too many.
        """
        if self.input is None:
            raise RequestError("missing parameter: input, or messages", "input")
        if isinstance(self.input, str):
            return [self.input]
        kinds = set(map(type, self.input))
        if kinds == {int}:
            return [self.input]
        lists = kinds == {list} and all({int}.issuperset(map(type, x)) for x in self.input)
        if not lists and kinds != {str}:
            raise RequestError("input takes text, token ids, or a list of either", "input")
        if len(self.input) > MAX_INPUTS:
            raise RequestError(
                f"input has {len(self.input)} texts, but one request may have {MAX_INPUTS}", "input"
            )
        return self.input


class VectorForm(TextRequest):
    """How vectors are to be made and written."""

    #: What stands in front of each text: itself, by its name in the model's files, or by the use.
    prompt: Annotated[str, Field(max_length=65536)] | None = None
    prompt_name: ShortText | None = None
    input_type: ShortText | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None

    # vLLM's, which must ask for what is done.
    padding: Literal["do_not_pad"] | None = None
    embed_dtype: Literal["float32"] | None = None
    endianness: Literal["native", "little"] | None = None

    def lead(self, instructions: Instructions) -> str:
        """See `PooledRequest`.

        Raises:
            RequestError: Also where there are no texts.
        """
        chosen = instructions.chosen(self.prompt, self.prompt_name, self.input_type)
        texts = self.input if isinstance(self.input, list) else [self.input]
        if not all(isinstance(one, str) for one in texts):
            for name in ("prompt", "prompt_name"):
                if getattr(self, name) is not None:
                    raise RequestError(f"{name} stands in front of texts of input alone", name)
        return chosen

    def normalized(self) -> bool | None:
        """Return whether vectors are to be normalized; None where nobody says.

        Raises:
            RequestError: Both names of the field are given, and differ.
        """
        if self.normalize is None or self.use_activation in (None, self.normalize):
            return self.use_activation if self.normalize is None else self.normalize
        raise RequestError("use_activation means normalize; give one of them", "use_activation")


class EmbeddingRequest(VectorForm):
    """See OpenAI's API reference, "Create embeddings"."""

    def params(self) -> PoolingParams:
        """Return what the engine takes.

        Raises:
            RequestError: A value is out of range, or two names of one field differ.
        """
        return PoolingParams(self.dimensions, self.normalized())


class Embedding(Struct, tag="embedding", tag_field="object"):
    """One vector: numbers, or base64 of their little-endian float32."""

    index: int
    embedding: list[float] | str


class PooledUsage(Struct):
    """Counts of tokens."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingAnswer(Struct, tag="list", tag_field="object"):
    """A vector for each text, in order."""

    data: list[Embedding]
    model: str
    usage: PooledUsage
