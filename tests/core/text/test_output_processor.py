"""Requests' outputs: text, tokens, log probabilities, reasons, n sequences, linear work."""

import itertools
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.text import OutputProcessor
from hotshoe.types import (
    FinishReason,
    SamplingParams,
    TokenLogprobs,
    TokenOutput,
)


class Driver:
    """Feeds one processor and adds up what it hands out."""

    def __init__(self, tokenizer):
        self.processor = OutputProcessor(tokenizer)
        self.texts, self.tokens, self.aborted = {}, {}, []
        self.last = {}

    def add(self, params, request_id="r", prompt_ids=(), children=()):
        self.processor.add(request_id, "prompt", list(prompt_ids), params, children)

    def feed(self, token_ids, request_id="r", **rest):
        return self.process([TokenOutput(request_id, list(token_ids), **rest)])

    def process(self, outputs):
        updates, aborted = self.processor.process(outputs)
        self.aborted += aborted
        for update in updates:
            self.last[update.request_id] = update
            for s in update.sequences:
                key = (update.request_id, s.index)
                self.texts[key] = self.texts.get(key, "") + s.new_text
                self.tokens.setdefault(key, []).extend(s.new_token_ids)
                completion = s.completion()
                assert completion.text == self.texts[key]
                assert completion.token_ids == self.tokens[key]
        return updates

    def completion(self, request_id="r", index=0):
        return self.last[request_id].output().outputs[index]


@pytest.fixture
def driver(byte_level_tokenizer):
    return Driver(byte_level_tokenizer)


def params(**values):
    return SamplingParams(**{"max_tokens": 1000} | values)


def logprob(token_id, value):
    return TokenLogprobs((token_id,), (value,), 1)


def test_stream_of_one_request(driver, byte_level_tokenizer):
    text = "naïve 🙂 fox"
    ids = byte_level_tokenizer.encode(text)
    driver.add(params(logprobs=0))
    for i, token_id in enumerate(ids):
        last = i == len(ids) - 1
        (update,) = driver.feed(
            [token_id],
            logprobs=[logprob(token_id, -0.5)],
            finish_reason=FinishReason.LENGTH if last else None,
            num_cached_tokens=4,
        )
        assert update.finished == last
    output = driver.last["r"].output()
    assert (output.prompt, output.num_cached_tokens, output.finished) == ("prompt", 4, True)
    done = output.outputs[0]
    assert (done.text, done.token_ids, done.index) == (text, ids, 0)
    assert done.finish_reason is FinishReason.LENGTH and done.stop_reason is None
    assert done.cumulative_logprob == pytest.approx(-0.5 * len(ids))
    assert [x.token_ids[0] for x in done.logprobs] == ids
    assert driver.aborted == [] and "r" not in driver.processor and len(driver.processor) == 0


def test_updates_are_snapshots(driver, byte_level_tokenizer):
    ids = byte_level_tokenizer.encode("The quick brown fox")
    driver.add(params())
    updates = [driver.feed([t])[0] for t in ids]
    texts = [u.output().outputs[0].text for u in updates]
    assert texts == [byte_level_tokenizer.decode(ids[: i + 1]) for i in range(len(ids))]
    assert [len(u.output().outputs[0].token_ids) for u in updates] == list(range(1, len(ids) + 1))
    assert driver.completion().logprobs is None and driver.completion().cumulative_logprob is None


def test_unfinished_character_comes_out_at_the_end(driver, byte_level_tokenizer):
    ids = byte_level_tokenizer.encode("a🙂")
    driver.add(params())
    driver.feed(ids[:-1])
    assert driver.completion().text == "a"
    driver.feed([], finish_reason=FinishReason.ABORT)
    assert driver.completion().text == "a\N{REPLACEMENT CHARACTER}"


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_grouping_of_tokens_gives_the_same_result(byte_level_tokenizer, data):
    letters = st.text(alphabet="ab 🙂", min_size=1, max_size=4)
    text = data.draw(st.text(alphabet="ab 🙂", max_size=30))
    stops = data.draw(st.lists(letters, max_size=3))
    ids = byte_level_tokenizer.encode(text)
    sampling = params(
        stop=tuple(stops),
        min_tokens=data.draw(st.integers(0, 12)),
        include_stop_str_in_output=data.draw(st.booleans()),
    )
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=5))
    results = []
    for bounds in ([], cuts, range(len(ids))):
        driver = Driver(byte_level_tokenizer)
        driver.add(sampling)
        bounds = [0, *sorted(bounds), len(ids)]
        for a, b in itertools.pairwise(bounds):
            driver.feed(ids[a:b])
        stopped = driver.aborted == ["r"]
        if not stopped:
            driver.feed([], finish_reason=FinishReason.LENGTH)
        done = driver.completion()
        assert (done.finish_reason is FinishReason.STOP) == stopped == (done.stop_reason in stops)
        results.append((done.text, done.token_ids, done.finish_reason, done.stop_reason))
    assert results[0] == results[1] == results[2]
    check_stop(*results[0], sampling, byte_level_tokenizer, ids)


def check_stop(text, token_ids, finish_reason, stop, sampling, tokenizer, ids):
    assert token_ids == ids[: len(token_ids)]
    if finish_reason is FinishReason.LENGTH:
        assert text == tokenizer.decode(ids) and token_ids == ids
        return
    assert len(token_ids) >= sampling.min_tokens
    kept = tokenizer.decode(token_ids)
    stopped_at = len(text) if sampling.include_stop_str_in_output else len(text) + len(stop)
    assert kept[:stopped_at].endswith(stop) and kept.startswith(text)


def test_stop_string_cuts_text_and_keeps_tokens(driver, byte_level_tokenizer):
    ids = byte_level_tokenizer.encode("The quick brown fox jumps")
    driver.add(params(stop=("own f",), logprobs=0))
    driver.feed(ids, logprobs=[logprob(t, -1.0) for t in ids])
    done = driver.completion()
    assert done.text == "The quick br" and done.stop_reason == "own f"
    assert byte_level_tokenizer.decode(done.token_ids) == "The quick brown fox"
    assert len(done.logprobs) == len(done.token_ids) and driver.aborted == ["r"]
    assert driver.feed(ids) == []  # the engine had one more step under way


def test_stop_strings_count_from_min_tokens_on(driver, byte_level_tokenizer):
    ids = byte_level_tokenizer.encode("foxfoxfox")
    assert len(ids) == 3
    for min_tokens, kept in ((0, 1), (1, 1), (2, 2), (3, 3)):
        name = f"r{min_tokens}"
        driver.add(params(stop=("fox",), min_tokens=min_tokens), name)
        driver.feed(ids, name)
        assert len(driver.completion(name).token_ids) == kept
        assert driver.completion(name).text == "fox" * (kept - 1)


def test_a_stop_string_in_the_engines_last_output_needs_no_abort(driver, byte_level_tokenizer):
    driver.add(params(stop=("fox",)))
    ids = byte_level_tokenizer.encode("a fox")
    driver.feed(ids, finish_reason=FinishReason.LENGTH)
    assert driver.completion().finish_reason is FinishReason.STOP
    assert driver.completion().text == "a " and driver.aborted == []


@pytest.mark.parametrize(("include", "shown"), [(False, "a"), (True, "a fox")])
def test_the_token_that_stops_is_no_text(driver, byte_level_tokenizer, include, shown):
    a, fox = byte_level_tokenizer.encode("a"), byte_level_tokenizer.encode(" fox")
    driver.add(params(stop_token_ids=tuple(fox[-1:]), include_stop_str_in_output=include))
    driver.feed([*a, *fox], finish_reason=FinishReason.STOP, stop_token_id=fox[-1])
    done = driver.completion()
    assert len(fox) == 1 and done.token_ids == [*a, *fox]
    assert (done.text, done.stop_reason) == (shown, fox[-1])


def test_special_tokens_and_no_detokenization(driver, byte_level_tokenizer):
    ids = byte_level_tokenizer.encode("<|im_start|>fox")
    driver.add(params(skip_special_tokens=False), "shown")
    driver.add(params(), "skipped")
    driver.add(params(detokenize=False), "none")
    for name, text in (("shown", "<|im_start|>fox"), ("skipped", "fox"), ("none", "")):
        driver.feed(ids, name, finish_reason=FinishReason.LENGTH)
        assert driver.completion(name).text == text and driver.completion(name).token_ids == ids
    bare = Driver(None)
    bare.add(params())
    bare.feed([10**6])
    assert bare.completion().text == "" and bare.completion().token_ids == [10**6]


def test_several_outputs_of_a_request_in_one_call(driver, byte_level_tokenizer):
    ids = byte_level_tokenizer.encode("The quick brown")
    driver.add(params(logprobs=0))
    updates = driver.process([TokenOutput("r", [t], logprobs=[logprob(t, -1.0)]) for t in ids])
    assert len(updates) == 1
    (sequence,) = updates[0].sequences
    assert (sequence.new_text, sequence.new_token_ids) == ("The quick brown", ids)
    assert [x.token_ids[0] for x in sequence.new_logprobs] == ids


def test_n_sequences_are_gathered(driver, byte_level_tokenizer):
    words = {"c0": "fox", "c1": "quick brown", "c2": "dog"}
    ids = {child: byte_level_tokenizer.encode(text) for child, text in words.items()}
    driver.add(params(n=3, stop=("dog",)), children=list(words))
    (update,) = driver.process([TokenOutput(c, x[:1]) for c, x in reversed(ids.items())])
    assert [s.index for s in update.sequences] == [0, 1, 2] and not update.finished
    (update,) = driver.feed(ids["c1"][1:], "c1", finish_reason=FinishReason.LENGTH)
    assert [s.new_text == "" for s in update.sequences] == [True, False, True]
    assert [s.finish_reason for s in update.sequences] == [None, FinishReason.LENGTH, None]
    error = {"finish_reason": FinishReason.ERROR, "error": "logits"}
    (update,) = driver.feed([], "c0", prompt_logprobs=[None], **error)
    assert not update.finished
    (update,) = driver.feed(ids["c2"][1:], "c2")
    assert update.finished and driver.aborted == ["c2"]
    output = update.output()
    assert update.num_generated_tokens == sum(len(o.token_ids) for o in output.outputs) > 3
    assert output.outputs[1].text == "quick brown" and output.outputs[2].text == ""
    assert output.outputs[0].error == "logits" and output.prompt_logprobs == [None]
    assert len(driver.processor) == 0


def test_abort_returns_what_still_runs(driver, byte_level_tokenizer):
    driver.add(params(n=2), children=["a", "b"])
    driver.feed([7], "a", finish_reason=FinishReason.LENGTH)
    assert driver.processor.abort("r") == ["b"]
    assert driver.processor.abort("r") == [] and driver.feed([7], "b") == []
    driver.add(params())  # the name is free again
    assert "r" in driver.processor


@pytest.mark.parametrize("stop", [(), ("never", "ever after")])
def test_work_per_token_does_not_grow(byte_level_tokenizer, stop):
    rng = random.Random(0)
    driver = OutputProcessor(byte_level_tokenizer)
    driver.add("r", None, [], params(stop=stop, max_tokens=None))
    ids = [rng.randrange(300, 400) for _ in range(40_000)]
    times = []
    for begin in range(0, len(ids), 8000):
        start = time.process_time()
        for token_id in ids[begin : begin + 8000]:
            driver.process([TokenOutput("r", [token_id])])
        times.append(time.process_time() - start)
    assert min(times[2:]) < 2.5 * min(times[:2])  # quadratic work would be five times more


def test_a_repetition_ends_a_sequence_and_is_aborted_in_the_engine(driver, byte_level_tokenizer):
    ids = byte_level_tokenizer.encode("ab")
    driver.add(params(repetition_detection=(len(ids), len(ids), 3), logprobs=0))
    values = [logprob(i, -1.0) for i in ids]
    for _ in range(2):
        driver.feed(ids, logprobs=values)
    driver.feed([*ids, *ids], logprobs=values * 2)
    found = driver.completion()
    assert (found.text, found.finish_reason) == ("ababab", FinishReason.REPETITION)
    assert (found.stop_reason, len(found.logprobs)) == ("repetition_detected", 3 * len(ids))
    assert driver.aborted == ["r"] and len(driver.processor) == 0
