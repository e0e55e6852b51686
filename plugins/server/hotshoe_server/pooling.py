"""The one way from texts to vectors, for every endpoint that makes something of these."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass

from hotshoe.engine.api.other_inputs import check_numbers, pooling_of
from hotshoe.text.pairs import pair_text
from hotshoe.text.tokenizer import Tokenizer
from hotshoe.types import PoolingParams
from hotshoe_server.call import Call
from hotshoe_server.errors import ApiError
from hotshoe_server.generation import check_length, generate, truncated
from hotshoe_server.merge import last_update
from hotshoe_server.renderer import Rendered, Renderer
from hotshoe_server.schemas.embeddings import PooledRequest, TextRequest
from hotshoe_server.state import Served

#: A field of the body, and what makes a prompt of it.
Source = tuple[str, Callable[[], Awaitable[Rendered]]]


def sources(served: Served, body: TextRequest) -> Iterator[Source]:
    """Yield what makes the prompts of a request: one conversation, or each of its texts."""
    render, lead = served.renderer, body.lead(served.client.info.instructions)
    if body.messages is not None:
        talk = body.conversation()

        def chat() -> Awaitable[Rendered]:
            messages, variables = talk.template_messages(), talk.template_variables()
            return render.chat(messages, None, variables, bool(body.add_special_tokens))

        yield "messages", chat
        return
    for text in body.inputs():
        yield "input", text_source(render, body, text, lead)


def text_source(
    renderer: Renderer, body: PooledRequest, text: str | list[int], lead: str = ""
) -> Callable[[], Awaitable[Rendered]]:
    """Return what makes a prompt of a text, with something in front of it, or of token ids."""
    adds, is_text = body.add_special_tokens is not False, isinstance(text, str)
    led = lead + text if isinstance(text, str) else text

    async def make() -> Rendered:
        made = await renderer.prompt(led, adds, content=True)
        return Framed(made.token_ids, made.text) if adds and is_text else made

    return make


def cut(tokenizer: Tokenizer, whole: Rendered, count: int, end: bool) -> Rendered:
    """Return so many tokens of a text's end or beginning, with special tokens at that side where
    the whole text has them."""
    part = whole.cut(count, end)
    if part is whole or not isinstance(whole, Framed):
        return part
    ids, (front, behind) = list(part.token_ids), frame(tokenizer)
    if end and front < len(ids):
        ids[:front] = whole.token_ids[:front]
    elif not end and 0 < behind < len(ids):
        ids[-behind:] = whole.token_ids[-behind:]
    return Rendered(ids)


def frame(tokenizer: Tokenizer) -> tuple[int, int]:
    """Return how many special tokens a tokenizer puts in front of a text, and behind it."""
    plain, framed = (tokenizer.encode("a", adds) for adds in (False, True))
    for front in range(len(framed) - len(plain) + 1):
        if plain and framed[front : front + len(plain)] == plain:
            return front, len(framed) - len(plain) - front
    return 0, 0


class Framed(Rendered):
    """Text with the tokenizer's special tokens around it."""


async def render_pair(served: Served, pair: tuple[str, str], separated: bool) -> Rendered:
    """Make one prompt of two texts.

    Raises:
        RequestError: The template of pairs refuses them, or there is no tokenizer.
        ApiError: A text is far too long.
    """
    renderer, templated = served.renderer, served.client.config.chat_template is not None

    def render() -> Rendered:
        for text in pair:
            renderer.check_size(text)
        tokenizer, marked = renderer.tokenizer, renderer.marks
        text, adds = pair_text(tokenizer, pair, separated, templated, marked)
        return (Framed if adds else Rendered)(tokenizer.encode(text, adds, marked))

    return await renderer.run(render)


@dataclass(frozen=True, slots=True)
class Made:
    """What was made of a prompt: little-endian float32, of all of it or of each token; and how many
    tokens were read."""

    vector: bytes
    token_ids: list[int]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


async def vectors(
    call: Call, body: PooledRequest, found: Iterable[Source], params: PoolingParams
) -> tuple[list[bytes], int]:
    """Make a vector of each source; see `pooled`.

    Returns:
        Each vector as little-endian float32, and the number of tokens that were read.
    """
    made = await pooled(call, body, found, params)
    return [one.vector for one in made], sum(one.num_tokens for one in made)


async def pooled(
    call: Call,
    body: PooledRequest,
    found: Iterable[Source],
    params: PoolingParams,
    then: Callable[[int, Made], Made] | None = None,
) -> list[Made]:
    """Make what is asked for of each source; the first that cannot be made ends the request.

    Args:
        call, body: Of the request.
        found: In order. A prompt is checked before the next one is tokenized, and all are before
            any of them is run.
        params: Of every vector.
        then: Called with the place of a source and what was made of it, as soon as that is there;
            what it returns is kept. Without it, all is, up to a number of numbers.

    Raises:
        RequestError: The model makes no such vectors, a text is malformed, or the answer would have
            too many numbers.
        ApiError: A prompt is empty or too long, or the model fails.
    """
    model, served = call.choose(body.model)
    pooling_of(served.client.info, params)
    prompts, total = [], 0
    for source in found:
        prompts.append(await _checked(call, *source))
        total += len(prompts[-1].token_ids)
        if then is None:
            check_numbers(served.client.info, params, total, source[0])
    # A long list takes no more of the queue than a request for as many sequences may.
    turns = asyncio.Semaphore(served.config.max_sequences)

    async def one(number: int, prompt: Rendered) -> Made:
        async with turns:
            request_id = f"{body.PREFIX}-{body.request_id or call.id}-{number}"
            update = await last_update(
                generate(call, model, prompt, params, request_id=request_id, priority=body.priority)
            )
        assert update.pooled is not None, "a request for a vector ends with it or fails"
        made = Made(update.pooled, prompt.token_ids)
        return made if then is None else then(number, made)

    tasks = [asyncio.create_task(one(i, prompt)) for i, prompt in enumerate(prompts)]
    try:
        made = await asyncio.gather(*tasks)
    finally:  # of those that one's failure, or a client that has gone, leaves running
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return made


async def _checked(call: Call, field: str, make: Callable[[], Awaitable[Rendered]]) -> Rendered:
    """Make one prompt of a field, of a length that can be served."""
    try:
        whole = await make()
        prompt = truncated(call, whole)
        if isinstance(whole, Framed) and prompt is not whole:
            end, length = call.body_read.wishes().keeps_end, len(prompt.token_ids)
            prompt = cut(call.served.renderer.tokenizer, whole, length, end)
    except ApiError as error:
        if error.code != "context_length_exceeded":
            raise
        raise ApiError(error.code, str(error), field) from None
    check_length(call, prompt.token_ids, room=False, field=field)
    return prompt
