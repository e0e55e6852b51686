"""Logits of every family agree with transformers, however a text is cut into steps."""

import random

import pytest
import torch

#: Largest difference over a position's largest logit, where rounding is not amplified.
TOLERANCE = 1e-4


def draw_texts(max_len):
    lengths = [max_len, random.randint(max_len // 2, max_len - 1), random.randint(2, 12)]
    return {i: [random.randrange(256) for _ in range(n)] for i, n in enumerate(lengths)}


def assert_close(ours, theirs, checkpoint, text):
    """Compare the positions whose experts are certain; rounding excuses some larger errors."""
    assert ours.shape == theirs.shape
    end = checkpoint.unstable(text)
    error = ((ours - theirs).abs().amax(-1) / theirs.abs().amax(-1))[:end]
    if not (error <= TOLERANCE).all():  # a NaN is no small error either
        allowed = checkpoint.rounding(text)[:end].clamp(min=TOLERANCE)
        wrong = (~(error <= allowed)).nonzero().flatten().tolist()
        assert not wrong, f"relative errors {error[wrong]} at positions {wrong}"


def reference(checkpoint, texts, variant):
    return {i: checkpoint.logits(text, variant.max_model_len) for i, text in texts.items()}


def run(stepper, texts, next_count):
    """Feed all texts to their ends; `next_count(sequence, done)` says how many tokens come next."""
    done = dict.fromkeys(texts, 0)
    collected = {i: [] for i in texts}
    while any(done[i] < len(text) for i, text in texts.items()):
        counts = {i: next_count(i, done[i]) for i, text in texts.items() if done[i] < len(text)}
        scheduled = {i: texts[i][done[i] : done[i] + n] for i, n in counts.items() if n}
        if not scheduled:
            continue
        for i, logits in stepper.step(scheduled).items():
            collected[i].append(logits)
            done[i] += len(scheduled[i])
    return {i: torch.cat(parts) for i, parts in collected.items()}


def test_prompts_then_decoding_step_by_step(variant, checkpoints, stepper_class):
    checkpoint = checkpoints.get(variant)
    texts = draw_texts(variant.max_model_len)
    prompts = {i: random.randint(max(1, len(text) - 16), len(text)) for i, text in texts.items()}
    prompts[0] = len(texts[0])  # one is read at once, to its end
    stepper = stepper_class(checkpoint.path, variant.max_model_len, impl=variant.impl)
    ours = run(stepper, texts, lambda i, done: prompts[i] if done == 0 else 1)
    for i, theirs in reference(checkpoint, texts, variant).items():
        assert_close(ours[i], theirs, checkpoint, texts[i])


def test_chunks_mixed_with_decoding(variant, checkpoints, stepper_class):
    checkpoint = checkpoints.get(variant)
    texts = draw_texts(variant.max_model_len)
    stepper = stepper_class(
        checkpoint.path,
        variant.max_model_len,
        block_size=random.choice([4 if variant.groups_tokens else 3, 8]),
        impl=variant.impl,
    )
    ours = run(stepper, texts, lambda i, done: random.choice([0, 1, 1, 5, 9]))
    for i, theirs in reference(checkpoint, texts, variant).items():
        assert_close(ours[i], theirs, checkpoint, texts[i])


@pytest.mark.slow  # it says of the references alone that they can tell
def test_references_are_far_from_uniform(variant, checkpoints):
    """The comparison means something only if order and context matter."""
    checkpoint = checkpoints.get(variant)
    text = draw_texts(variant.max_model_len)[0]
    theirs = checkpoint.logits(text)[-1]
    assert theirs.std() > 0.1
    # Sparse attention may read none of the last ones, and normed heads may hardly tell them apart.
    whole = {"index_topk", "use_qk_norm"} & variant.values.keys()
    last = len(text) if whole else 5
    moved = text[-last:-1]
    shuffled = [
        [*text[: len(text) - last], *random.sample(moved, len(moved)), text[-1]] for _ in range(6)
    ]
    change = max((checkpoint.logits(other)[-1] - theirs).abs().max() for other in shuffled)
    assert change > 30 * TOLERANCE * theirs.abs().max()
