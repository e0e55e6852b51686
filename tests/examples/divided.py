"""Run by test_sim.py where the simulated accelerator is installed, which any number of processes
may have one of: sizes that do not come out even, divided among up to four ranks."""

from hotshoe import LLM, SamplingParams, TokensPrompt

#: 257 tokens among 2, 3 and 4 ranks; one KV head for all of them.
ODD = {
    "vocab_size": 257,
    "num_attention_heads": 12,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "intermediate_size": 192,
}
PROMPTS = [TokensPrompt([(7 * i + n) % 257 for i in range(n)]) for n in (1, 5, 40)]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
SMALL = {"max_num_seqs": 4, "max_model_len": 64, "dtype": "float32", "seed": 3}


def answers(platform: str, size: int, stages: int = 1) -> list[list[int]]:
    """Run the prompts on so many devices for each of so many stages."""
    options = {"load_format": "dummy", "hf_overrides": ODD, **SMALL}
    with LLM(
        "demo",
        platform=platform,
        tensor_parallel_size=size,
        pipeline_parallel_size=stages,
        **options,
    ) as llm:
        return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]


def main() -> None:
    """Assert that all give the same tokens."""
    expected = answers("cpu", 1)
    assert len(set(map(tuple, expected))) == len(expected)
    for size in (1, 2, 3, 4):
        assert answers("sim", size) == expected, size
        print(size)
    for stages, size in ((2, 1), (2, 2)):
        assert answers("sim", size, stages) == expected, (stages, size)
        print(stages, size)


if __name__ == "__main__":
    main()
