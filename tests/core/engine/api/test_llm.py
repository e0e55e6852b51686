"""The offline API on the null platform, whose tokens count upwards."""

import signal
from pathlib import Path

import pytest

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.builtin.null import NullWorker
from hotshoe.errors import (
    CheckpointError,
    ConfigError,
    EngineDeadError,
    QueueFullError,
    RequestError,
)
from hotshoe.types import FinishReason

EOS = 255


@pytest.fixture(params=[False, True], ids=["stepwise", "overlapped"])
def llm(request: pytest.FixtureRequest, model_dir: Path, plugins) -> LLM:
    return LLM(
        str(model_dir),
        platform="null",
        plugins=plugins,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        async_scheduling=request.param,
    )


def tokens(llm: LLM, start: list[int], **params: object) -> list[int]:
    [output] = llm.generate(TokensPrompt(start), SamplingParams(**params))
    return output.outputs[0].token_ids


def test_counts_upwards(llm: LLM) -> None:
    assert tokens(llm, [7], max_tokens=4) == [8, 9, 10, 11]


def test_a_batch_keeps_its_order(llm: LLM) -> None:
    prompts = [TokensPrompt([i] * (1 + i)) for i in range(20)]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=3))
    assert [o.outputs[0].token_ids for o in outputs] == [[i + 1, i + 2, i + 3] for i in range(20)]
    assert all(o.finished for o in outputs)


def test_end_of_sequence_stops(llm: LLM) -> None:
    [output] = llm.generate(TokensPrompt([252]), SamplingParams(max_tokens=20))
    assert output.outputs[0].token_ids == [253, 254, EOS]
    assert output.outputs[0].finish_reason is FinishReason.STOP
    assert tokens(llm, [252], max_tokens=5, ignore_eos=True) == [253, 254, 255, 256, 257]


def test_length_of_the_model_ends_a_request(llm: LLM) -> None:
    [output] = llm.generate(TokensPrompt([0] * 60), SamplingParams(max_tokens=None))
    assert output.outputs[0].token_ids == [1, 2, 3, 4]
    assert output.outputs[0].finish_reason is FinishReason.LENGTH


def test_stop_string_cuts_the_text_and_frees_the_request(llm: LLM) -> None:
    text = llm.generate("A", SamplingParams(max_tokens=10))[0].outputs[0].text
    assert text == "BCDEFGHIJK"
    [output] = llm.generate("A", SamplingParams(max_tokens=10, stop="EF"))
    assert output.outputs[0].text == "BCD"
    assert output.outputs[0].stop_reason == "EF"
    assert not llm.engine.has_work() or llm.engine.step() == []


def test_stream_yields_what_generate_returns(llm: LLM) -> None:
    updates = list(llm.stream("A", SamplingParams(max_tokens=6)))
    assert "".join(u.sequences[0].new_text for u in updates) == "BCDEFG"
    assert updates[-1].finished
    assert updates[-1].output().outputs[0].text == "BCDEFG"


def test_leaving_a_stream_aborts(llm: LLM) -> None:
    stream = llm.stream("A", SamplingParams(max_tokens=40))
    next(stream)
    stream.close()
    while llm.engine.has_work():
        llm.engine.step()
    assert llm.engine.core.stats().num_running == 0


def test_enqueued_prompts_run_when_waited_for(llm: LLM) -> None:
    first = llm.enqueue([TokensPrompt([i]) for i in range(6)], SamplingParams(max_tokens=3))
    second = llm.enqueue("A", SamplingParams(max_tokens=2, n=2))
    assert llm.engine.core.stats().num_steps == 0
    outputs = llm.wait_for_completion()
    assert [o.request_id for o in outputs] == [*first, *second]
    assert [o.outputs[0].token_ids for o in outputs[:6]] == [
        [i + 1, i + 2, i + 3] for i in range(6)
    ]
    assert [o.text for o in outputs[6].outputs] == ["BC", "BC"]
    assert llm.wait_for_completion() == []


def test_other_calls_between_enqueue_and_wait(llm: LLM) -> None:
    ids = llm.enqueue(TokensPrompt([1]), SamplingParams(max_tokens=2))
    assert tokens(llm, [7], max_tokens=9) == list(range(8, 17))
    assert list(llm.stream("A", SamplingParams(max_tokens=6)))[-1].finished
    assert [o.request_id for o in llm.wait_for_completion()] == ids


def test_a_bad_prompt_among_enqueued_ones_leaves_nothing(llm: LLM) -> None:
    with pytest.raises(RequestError):
        llm.enqueue([TokensPrompt([1]), TokensPrompt([])])
    assert not llm.engine.has_work() and llm.wait_for_completion() == []


def test_enqueue_keeps_the_bounds_of_the_queue(model_dir: Path, plugins) -> None:
    options = {"max_num_seqs": 1, "max_num_queued_reqs": 2}
    llm = LLM(str(model_dir), platform="null", plugins=plugins, **options)
    llm.enqueue(["A"] * 3)
    with pytest.raises(QueueFullError):
        llm.enqueue("A")
    assert len(llm.wait_for_completion()) == 3


def test_priorities_order_what_was_enqueued(model_dir: Path, plugins) -> None:
    options = {"max_num_seqs": 1, "scheduling_policy": "priority"}
    llm = LLM(str(model_dir), platform="null", plugins=plugins, **options)
    late = llm.enqueue("A", SamplingParams(max_tokens=2), priority=5)
    early = llm.enqueue("A", SamplingParams(max_tokens=2), priority=1)
    outputs = {o.request_id: o.timing.last_token_s for o in llm.wait_for_completion()}
    assert outputs[early[0]] < outputs[late[0]]


def test_several_sequences(llm: LLM) -> None:
    [output] = llm.generate("A", SamplingParams(max_tokens=2, n=6))
    assert [o.text for o in output.outputs] == ["BC"] * 6


def test_chat_uses_the_template(llm: LLM) -> None:
    [output] = llm.chat([{"role": "user", "content": "hi"}], SamplingParams(max_tokens=1))
    assert llm.tokenizer.decode(output.prompt_token_ids) == "user:hi\n"


def test_conversations_run_as_a_batch(llm: LLM) -> None:
    said = [[{"role": "user", "content": text}] for text in ("hi", "yo", "hi")]
    params = [SamplingParams(max_tokens=count) for count in (1, 2, 3)]
    outputs = llm.chat(said, params)
    prompts = [llm.tokenizer.decode(output.prompt_token_ids) for output in outputs]
    assert prompts == ["user:hi\n", "user:yo\n", "user:hi\n"]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3]
    with pytest.raises(RequestError, match="3 prompts, but 1 sampling parameters"):
        llm.chat(said, params[:1])


def test_chat_renders_as_the_server_does(llm: LLM) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    [output] = llm.chat([{"role": "user", "content": parts}], SamplingParams(max_tokens=1))
    assert llm.tokenizer.decode(output.prompt_token_ids) == "user:h\ni\n"
    with pytest.raises(RequestError, match="text only, no image_url"):
        llm.chat([{"role": "user", "content": [{"type": "image_url"}]}])
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    [output] = llm.chat(said, SamplingParams(max_tokens=1), **options)
    assert llm.tokenizer.decode(output.prompt_token_ids) == "user:hi\nassistant:yo"


def test_a_template_in_place_of_the_models(model_dir: Path, plugins) -> None:
    options = {
        "platform": "null",
        "plugins": plugins,
        "chat_template": "<{{ messages[0].content }}>",
    }
    with LLM(str(model_dir), **options) as llm:
        [output] = llm.chat([{"role": "user", "content": "hi"}], SamplingParams(max_tokens=1))
        assert llm.tokenizer.decode(output.prompt_token_ids) == "<hi>"


def test_a_paused_engine_keeps_what_is_enqueued(llm: LLM) -> None:
    llm.pause()
    assert llm.is_paused and llm.stats().is_paused
    llm.enqueue(TokensPrompt([7]), SamplingParams(max_tokens=2))
    with pytest.raises(RequestError, match=r"the engine is paused; call resume\(\) first"):
        llm.wait_for_completion()
    with pytest.raises(RequestError, match="paused"):
        tokens(llm, [1], max_tokens=2)
    llm.resume()
    [output] = llm.wait_for_completion()
    assert output.outputs[0].token_ids == [8, 9]


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_a_pause_ends_waits_for_or_keeps_what_runs(llm: LLM, mode: str) -> None:
    stream = llm.stream(TokensPrompt([7]), SamplingParams(max_tokens=6))
    assert next(stream).sequences[0].new_token_ids == [8]
    llm.pause(mode)
    if mode == "keep":
        llm.resume()
    updates = list(stream)
    last = updates[-1].output().outputs[0]
    if mode == "abort":
        assert last.finish_reason is FinishReason.ABORT
    else:
        assert last.token_ids == [8, 9, 10, 11, 12, 13]
    llm.resume()
    assert tokens(llm, [1], max_tokens=1) == [2]
    with pytest.raises(RequestError, match="mode must be one of"):
        llm.pause("never")


@pytest.mark.parametrize("level", [0, 2])
def test_sleeping_and_waking(llm: LLM, level: int) -> None:
    llm.sleep(level)
    assert llm.is_sleeping
    with pytest.raises(RequestError, match=r"asleep; call wake_up\(\) first"):
        tokens(llm, [1], max_tokens=1)
    llm.wake_up(["scheduling"])
    assert llm.is_sleeping == (level == 2)
    llm.wake_up()
    assert not llm.is_sleeping
    assert tokens(llm, [1], max_tokens=1) == [2]


def test_prefixes_are_forgotten(llm: LLM) -> None:
    prompt, params = TokensPrompt([5] * 20), SamplingParams(max_tokens=1)
    llm.generate(prompt, params)
    assert llm.generate(prompt, params)[0].num_cached_tokens > 0
    assert llm.reset_prefix_cache()
    assert llm.generate(prompt, params)[0].num_cached_tokens == 0
    assert llm.stats().num_generated_tokens == 3


def test_profiles_are_refused_where_nothing_records(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot record"):
        llm.start_profile(str(tmp_path))
    with pytest.raises(RequestError, match="cannot record"):
        llm.stop_profile()


BAD = {
    "empty": (TokensPrompt([]), {}, "empty"),
    "too long": (TokensPrompt([1] * 64), {}, "maximum context length is 64 tokens"),
    "negative": (TokensPrompt([-1]), {}, "outside the vocabulary"),
    "beyond": (TokensPrompt([1 << 17]), {}, "outside the vocabulary"),
    "not a number": (TokensPrompt([1.5]), {}, "integers"),
    "no prompt": (17, {}, "TextPrompt, TokensPrompt"),
    "a flag for a number": (TokensPrompt([True]), {}, "integers, not True of type bool"),
    "no list": (TokensPrompt(5), {}, "come as a list, not as 5"),
    "logprobs": ("A", {"logprobs": 21}, "allows 20"),
    "bias": ("A", {"logit_bias": {1 << 20: 1.0}}, "logit_bias"),
}


@pytest.mark.parametrize(("prompt", "params", "match"), BAD.values(), ids=BAD)
def test_bad_requests_are_refused_and_others_go_on(llm: LLM, prompt, params, match: str) -> None:
    with pytest.raises(RequestError, match=match):
        llm.generate([TokensPrompt([1]), prompt], SamplingParams(**params))
    assert tokens(llm, [7], max_tokens=2) == [8, 9]


@pytest.mark.parametrize("prompts", [5, None, {"prompt": "A"}])
def test_prompts_of_another_kind_are_refused(llm: LLM, prompts) -> None:
    with pytest.raises(RequestError, match="or a list of these"):
        llm.generate(prompts)


@pytest.mark.parametrize("params", [{"temperature": 0}, 5, [5], "x"])
def test_params_of_another_kind_are_refused(llm: LLM, params) -> None:
    with pytest.raises(RequestError, match="must be SamplingParams"):
        llm.generate("A", params)


def test_streams_and_other_calls_take_turns(llm: LLM) -> None:
    params = SamplingParams(max_tokens=5)
    first, second = llm.stream("A", params), llm.stream("K", params)
    texts = ["", ""]
    for one, two in zip(first, second, strict=True):
        texts[0] += one.sequences[0].new_text
        texts[1] += two.sequences[0].new_text
        assert (
            tokens(llm, [7], max_tokens=9)[-1] == 16
        )  # both streams end during the first of these
    assert texts == ["BCDEF", "LMNOP"]
    assert list(first) == []


def test_an_interrupt_waits_for_the_end_of_a_step(llm: LLM, monkeypatch) -> None:
    execute = NullWorker.execute
    once = iter([True])

    def interrupted(self: NullWorker, plan):
        if len(plan.rows) == 2 and next(once, False):
            signal.raise_signal(signal.SIGINT)
        return execute(self, plan)

    monkeypatch.setattr(NullWorker, "execute", interrupted)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([TokensPrompt([1]), TokensPrompt([5])])
    assert signal.getsignal(signal.SIGINT) is handler
    assert tokens(llm, [7], max_tokens=2) == [8, 9]


def test_an_interrupt_ends_a_call_after_the_present_step(llm: LLM, monkeypatch) -> None:
    steps = []
    execute = NullWorker.execute

    def interrupted(self: NullWorker, plan):
        steps.append(plan.step_id)
        if len(steps) == 2:
            signal.raise_signal(signal.SIGINT)
        return execute(self, plan)

    monkeypatch.setattr(NullWorker, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(TokensPrompt([1]), SamplingParams(max_tokens=9))
    assert len(steps) == 2
    assert tokens(llm, [7], max_tokens=2) == [8, 9]


def test_a_handler_that_only_takes_note_stops_nothing(llm: LLM, monkeypatch) -> None:
    noted = []
    execute = NullWorker.execute

    def interrupted(self: NullWorker, plan):
        signal.raise_signal(signal.SIGINT)
        return execute(self, plan)

    monkeypatch.setattr(NullWorker, "execute", interrupted)
    former = signal.signal(signal.SIGINT, lambda *signalled: noted.append(signalled[0]))
    try:
        assert tokens(llm, [7], max_tokens=3) == [8, 9, 10]
        list(llm.stream(TokensPrompt([7]), SamplingParams(max_tokens=2)))
        assert noted == [signal.SIGINT] * 5
    finally:
        signal.signal(signal.SIGINT, former)


def test_a_second_interrupt_ends_the_engine(llm: LLM, monkeypatch) -> None:
    def interrupted(self: NullWorker, plan):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(NullWorker, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate("A")
    with pytest.raises(EngineDeadError, match="KeyboardInterrupt"):
        llm.generate("A")


def test_either_a_configuration_or_options(llm: LLM) -> None:
    with pytest.raises(ConfigError, match="either config, or"):
        LLM("demo", config=llm.config)


def test_an_id_in_use_is_refused_whatever_n(llm: LLM) -> None:
    engine = llm.engine
    engine.add("a", "A", SamplingParams(n=2, max_tokens=3))
    for n in (1, 2):
        with pytest.raises(RequestError, match="in use"):
            engine.add("a", "A", SamplingParams(n=n))
    finished = []
    while engine.has_work():
        finished += [update.request_id for update in engine.step() if update.finished]
    assert finished == ["a"]


def test_as_many_params_as_prompts(llm: LLM) -> None:
    with pytest.raises(RequestError, match="2 prompts, but 1"):
        llm.generate(["A", "B"], [SamplingParams()])


def test_a_closed_engine_says_so(llm: LLM) -> None:
    llm.close()
    with pytest.raises(EngineDeadError, match="closed"):
        llm.generate("A")


def test_unknown_options_are_suggested(model_dir: Path, plugins) -> None:
    with pytest.raises(ConfigError, match="did you mean max_num_seqs"):
        LLM(str(model_dir), platform="null", plugins=plugins, max_num_seq=1)


def test_without_tokenizer(model_dir: Path, plugins) -> None:
    llm = LLM(str(model_dir), platform="null", plugins=plugins, skip_tokenizer_init=True)
    assert tokens(llm, [7], max_tokens=1) == [8]
    with pytest.raises(RequestError, match="no tokenizer"):
        llm.generate("text")


def test_the_checkpoints_defaults_stand_where_nothing_is_given(
    model_dir: Path, plugins, tmp_path: Path
) -> None:
    chosen = tmp_path / "generation_config.json"
    chosen.write_text('{"max_new_tokens": 3, "temperature": 0.5}')
    llm = LLM(str(model_dir), platform="null", plugins=plugins, generation_config=str(chosen))
    assert llm.sampling_defaults == {"max_tokens": 3, "temperature": 0.5}
    outputs = [*llm.generate("A"), *llm.generate("A", SamplingParams(max_tokens=2))]
    *_, streamed = llm.stream("A")
    outputs.append(streamed.output())
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 2, 3]
    chosen.write_text('{"temperature": "warm"}')
    with pytest.raises(CheckpointError, match=r"generation_config\.json: temperature"):
        LLM(str(model_dir), platform="null", plugins=plugins, generation_config=str(tmp_path))
