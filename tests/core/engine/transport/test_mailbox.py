"""Mailboxes of requests: nothing lost, in order, joined for readers that fall behind."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.engine.transport.mailbox import Mailbox
from hotshoe.errors import EngineDeadError
from hotshoe.text import OutputProcessor
from hotshoe.types import FinishReason, SamplingParams, TokenLogprobs, TokenOutput

NUM_SEQUENCES = 2
CHILDREN = ["a", "b"]


class Letters(dict):
    """Pieces of a tokenizer whose tokens are ASCII characters."""

    def make(self, token_id: int, first: bool) -> bytes:
        return bytes([token_id])

    def __missing__(self, token_id: int) -> bytes:
        return bytes([token_id])


def started() -> OutputProcessor:
    processor = OutputProcessor(SimpleNamespace(pieces=Letters(), special_token_ids=frozenset()))
    params = SamplingParams(n=NUM_SEQUENCES, logprobs=0, max_tokens=100)
    processor.add("r", None, [1], params, CHILDREN)
    return processor


def output(child: int, token_id: int, last: bool) -> TokenOutput:
    logprobs = [TokenLogprobs((token_id,), (-1.0,), 1)]
    reason = FinishReason.LENGTH if last else None
    return TokenOutput(CHILDREN[child], [token_id], logprobs, finish_reason=reason)


@given(
    st.lists(
        st.tuples(st.integers(0, NUM_SEQUENCES - 1), st.integers(65, 90), st.booleans()),
        min_size=1,
        max_size=30,
    )
)
def test_readers_get_everything_however_late(steps) -> None:
    """A step brings one token for one sequence; then the reader reads, or does not."""
    processor = started()
    tokens: list[list[int]] = [[], []]
    logprobs: list[list[TokenLogprobs]] = [[], []]
    texts = ["", ""]
    final = [max((i for i, s in enumerate(steps) if s[0] == c), default=-1) for c in (0, 1)]

    async def run() -> None:
        mailbox, reads = Mailbox(), 0
        for i, (child, token_id, reads_now) in enumerate(steps):
            step = [output(child, token_id, i == final[child])]
            for update in processor.process(step)[0]:
                mailbox.put(update)
            if not reads_now and i < len(steps) - 1:
                continue
            reads += 1
            update = await mailbox.get()
            for sequence in update.sequences:
                tokens[sequence.index] += sequence.new_token_ids
                logprobs[sequence.index] += sequence.new_logprobs or []
                texts[sequence.index] += sequence.new_text
                completion = sequence.completion()
                assert completion.token_ids == tokens[sequence.index]
                assert completion.text == texts[sequence.index]
        assert reads == sum(s[2] for s in steps[:-1]) + 1
        for child in range(NUM_SEQUENCES):
            assert texts[child] == bytes(tokens[child]).decode()
            assert tokens[child] == [s[1] for s in steps if s[0] == child]
            assert [entry.token_ids[0] for entry in logprobs[child]] == tokens[child]
            reason = update.sequences[child].finish_reason
            assert reason is (FinishReason.LENGTH if tokens[child] else None)

    asyncio.run(run())


def test_a_reader_waits_and_may_give_up_waiting() -> None:
    async def run() -> None:
        mailbox, processor = Mailbox(), started()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(mailbox.get(), 0.01)
        waiting = asyncio.create_task(mailbox.get())
        await asyncio.sleep(0)
        for token_id in (65, 66):  # the reader has been woken, and has not run yet
            mailbox.put(processor.process([output(0, token_id, False)])[0][0])
        assert (await waiting).sequences[0].new_token_ids == [65, 66]

    asyncio.run(run())


def test_an_error_comes_after_what_was_gained_and_the_first_counts() -> None:
    async def run() -> None:
        mailbox, processor = Mailbox(), started()
        mailbox.put(processor.process([output(0, 65, False)])[0][0])
        mailbox.fail(EngineDeadError("first"))
        mailbox.fail(EngineDeadError("second"))
        assert (await mailbox.get()).sequences[0].new_token_ids == [65]
        for _ in range(2):
            with pytest.raises(EngineDeadError, match="first"):
                await mailbox.get()

    asyncio.run(run())
