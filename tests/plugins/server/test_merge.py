"""Several streams as one."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from hotshoe_server.merge import merge


class Source:
    """Yields letters; remembers whether it was closed before its end."""

    def __init__(self, text: str, fails: bool = False) -> None:
        self.text, self.fails, self.closed = text, fails, False

    async def letters(self) -> AsyncIterator[str]:
        try:
            for letter in self.text:
                await asyncio.sleep(0)
                yield letter
            if self.fails:
                raise ValueError("broken")
        finally:
            self.closed = True


async def gathered(*sources: Source) -> dict[int, str]:
    found: dict[int, str] = {}
    async for number, letter in merge([source.letters() for source in sources]):
        found[number] = found.get(number, "") + letter
    return found


def test_everything_comes_in_order() -> None:
    texts = ["abc", "d", "efgh"]
    assert asyncio.run(gathered(*map(Source, texts))) == dict(enumerate(texts))
    assert asyncio.run(gathered(Source("abc"))) == {0: "abc"}


def test_the_first_error_ends_all() -> None:
    good, bad = Source("x" * 1000), Source("y", fails=True)
    with pytest.raises(ValueError, match="broken"):
        asyncio.run(gathered(good, bad))
    assert good.closed and bad.closed


@pytest.mark.parametrize("count", [1, 3])
def test_leaving_closes_all(count: int) -> None:
    sources = [Source("x" * 1000) for _ in range(count)]

    async def run() -> None:
        stream = merge([source.letters() for source in sources])
        await anext(stream)
        await asyncio.sleep(0)
        await stream.aclose()

    asyncio.run(run())
    assert all(source.closed for source in sources)
