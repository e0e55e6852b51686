"""Run by test_sim.py where the simulated accelerator is installed: it and a CPU serve the demo
model in one process, by turns, and one goes on with what the other has begun."""

from hotshoe import LLM, SamplingParams, TokensPrompt

LENGTH = 16
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)


def main() -> None:
    """Assert it."""
    options = {"dtype": "float32", "max_num_seqs": 2, "max_model_len": 256}
    with (
        LLM("demo", platform="cpu", **options) as cpu,
        LLM("demo", platform="sim", **options) as sim,
    ):
        prompt = TokensPrompt(cpu.tokenizer.encode("The list of files in this folder: " * 5))
        streams = cpu.stream(prompt, GREEDY), sim.stream(prompt, GREEDY)
        begun = [(next(streams[0]), next(streams[1])) for _ in range(LENGTH // 2)][-1]
        halves = [update.output().outputs[0].token_ids for update in begun]
        assert halves[0] == halves[1], halves
        whole = [list(stream)[-1].output().outputs[0].token_ids for stream in streams]
        assert whole[0] == whole[1], whole
        known = [*prompt.token_ids, *halves[0]]
        rest = SamplingParams(temperature=0, max_tokens=LENGTH - len(halves[0]), ignore_eos=True)
        for there, here in ((cpu, sim), (sim, cpu)):
            here.engine.core.reset_prefix_cache()
            before = here.engine.core.stats().num_hit_tokens
            blocks = there.engine.core.kv_exchange().give(known)
            here.engine.core.kv_exchange().take(blocks)
            [answer] = here.generate(TokensPrompt(known), rest)
            assert halves[0] + answer.outputs[0].token_ids == whole[0]
            assert here.engine.core.stats().num_hit_tokens - before >= 32
            axes = {part.axes for layer in blocks.descriptor.layers for part in layer.parts}
            print(there.config.platform, blocks.descriptor.block_tokens, *sorted(axes))


if __name__ == "__main__":
    main()
