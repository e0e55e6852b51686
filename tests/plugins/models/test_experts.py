"""Experts spread over ranks: logits and tokens are those of one device; each reads its own."""

import pytest
import torch
from tests.plugins.models.test_parallel import TIE, Group, draw

from hotshoe import LLM, EngineConfig, SamplingParams, TokensPrompt
from hotshoe.engine.explain.explanation import explain
from hotshoe.errors import ConfigError, RequestError
from hotshoe.runner.balance import ExpertBalance
from hotshoe.types.mesh import Axis

MIXTURES = [
    "deepseek-v2-experts",
    "deepseek-v2-groups",
    "glm4-moe",
    "gpt-oss",
    "granite-moe",
    "mixtral",
    "qwen2-moe",
    "qwen3-moe",
]
SPREAD = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
MOVING = {"enable_eplb": True, "num_redundant_experts": 2, "eplb_step_interval": 1}
PUBLISHED = ["deepseek-v2-groups", "gpt-oss", "mixtral", "qwen3-moe"]


@pytest.mark.parametrize("name", MIXTURES)
def test_logits_are_those_of_one_device(
    name, variants, checkpoints, stepper_class, tmp_path
) -> None:
    variant = variants[name]
    checkpoint = checkpoints.get(variant)

    def stepper(**parallel):
        return stepper_class(checkpoint.path, variant.max_model_len, **parallel)

    alone, group = stepper(), Group(2, tmp_path)
    spread = [{**group.parallel(rank), "experts": Axis(rank, 2)} for rank in range(2)]
    steppers = group.run(lambda rank: stepper(**spread[rank]))
    for step in [{0: draw(5), 1: draw(3)}, {1: draw(1), 0: draw(1)}, {0: draw(2), 2: draw(6)}]:
        expected = alone.step(step)
        found = group.run(lambda rank, step=step: steppers[rank].step(step))
        for sequence, logits in expected.items():
            assert torch.equal(found[0][sequence], found[1][sequence])
            error = (found[0][sequence] - logits).abs().max()
            assert error <= TIE * logits.abs().max()
    shares = [s.ctx.mixtures for s in steppers]
    for first, second in zip(*shares, strict=True):
        assert first.experts and second.experts and not set(first.experts) & set(second.experts)
    group.close()


def test_a_rank_reads_its_own_experts_alone(variants, checkpoints, stepper_class, tmp_path) -> None:
    variant = variants["qwen3-moe"]
    checkpoint = checkpoints.get(variant)
    group = Group(2, tmp_path)

    def work(rank):
        parallel = {**group.parallel(rank), "experts": Axis(rank, 2)}
        return stepper_class(checkpoint.path, variant.max_model_len, **parallel).ctx.weights

    tables = group.run(work)
    group.close()
    names = [{n for n in t.expected if ".experts." in n} for t in tables]
    assert names[0] and names[1] and not names[0] & names[1]
    for own, other in ((0, 1), (1, 0)):
        assert all(tables[own].is_elsewhere(name) for name in names[other])
        assert not any(tables[own].wants(name) for name in names[other])


@pytest.mark.parametrize("more", [{}, MOVING], ids=["stay", "move"])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "qwen3-moe" else pytest.mark.slow) for n in PUBLISHED]
)
def test_two_processes_write_the_tokens_of_transformers(name, more, variants, checkpoints) -> None:
    checkpoint, count = checkpoints.get(variants[name]), 12
    options = {
        "platform": "cpu",
        "dtype": "float32",
        "block_size": 8,
        "max_model_len": variants[name].max_model_len,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 5,
        "skip_tokenizer_init": True,
        **SPREAD,
        **more,
    }
    params = SamplingParams(temperature=0.0, max_tokens=count)
    prompts = [draw(14), draw(3), draw(9)]
    with LLM(str(checkpoint.path), **options) as llm:
        results = llm.generate([TokensPrompt(prompt) for prompt in prompts], params)
        specs = [d.spec for d in llm.decisions if d.slot == "moe"]
        redundant = more.get("num_redundant_experts", 0)
        assert specs and all(s.held == (s.num_experts + redundant) // 2 for s in specs)
        if "enable_eplb" in more:
            message = "slot moe moves its experts from place to place.*use level 2"
            with pytest.raises(RequestError, match=message):
                llm.sleep(1)
    for prompt, result in zip(prompts, results, strict=True):
        assert len(result.outputs[0].token_ids) == count
        checkpoint.assert_greedy(prompt, result.outputs[0].token_ids)


def test_experts_that_move_change_no_logits(variants, checkpoints, stepper_class, tmp_path) -> None:
    """Some experts get all tokens, by counts of the test's own; the next steps go on as before."""
    variant = variants["qwen3-moe"]
    checkpoint = checkpoints.get(variant)

    def stepper(**parallel):
        return stepper_class(checkpoint.path, variant.max_model_len, **parallel)

    alone, group = stepper(), Group(2, tmp_path)
    axes = [Axis(rank, 2) for rank in range(2)]
    steppers = group.run(
        lambda rank: stepper(**group.parallel(rank), experts=axes[rank], redundant_experts=2)
    )
    balances = [
        ExpertBalance(s.ctx.mixtures, axis, member, 1)
        for s, axis, member in zip(steppers, axes, group.members, strict=True)
    ]
    group.run(lambda rank: balances[rank].meet())
    for turn in range(variant.max_model_len - 8):
        step = {0: draw(5), 1: draw(3)} if turn == 0 else {0: draw(1), 1: draw(1)}

        def work(rank, step=step):
            balances[rank].before_step()
            for share in steppers[rank].ctx.mixtures:
                share.counts[2 + 3 * rank : 4 + 3 * rank] += 1000  # the first rank's are believed
            return steppers[rank].step(step)

        expected, found = alone.step(step), group.run(work)
        for sequence, logits in expected.items():
            assert torch.equal(found[0][sequence], found[1][sequence])
            assert (found[0][sequence] - logits).abs().max() <= TIE * logits.abs().max()
    assert balances[0].num_moved == balances[1].num_moved > 0
    shares = zip(*(s.ctx.mixtures for s in steppers), strict=True)
    assert all(torch.equal(a.everywhere, b.everywhere) for a, b in shares)
    group.close()


def test_a_model_without_experts_is_refused(variants, checkpoints) -> None:
    checkpoint = checkpoints.get(variants["llama"])
    with pytest.raises(ConfigError, match="enable_expert_parallel: LlamaForCausalLM has no exp"):
        explain(EngineConfig(str(checkpoint.path), platform="cpu", **SPREAD))
