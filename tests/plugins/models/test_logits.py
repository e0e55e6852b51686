"""Logits of every family agree with transformers, however a text is cut into steps."""

import random

import pytest
import torch

#: Largest difference over a position's largest logit, where rounding is not amplified.
TOLERANCE = 1e-4


#: So many tokens of a text are read one by one when every prompt has been read.
TAIL = 6


def draw(length):
    return [random.randrange(256) for _ in range(length)]


def assert_close(ours, theirs, checkpoint, text):
    """Compare the positions whose experts are certain; rounding excuses some larger errors."""
    assert ours.shape == theirs.shape and not ours.isnan().any()
    end = checkpoint.unstable(text)
    error = ((ours - theirs).abs().amax(-1) / theirs.abs().amax(-1))[:end]
    if not (error <= TOLERANCE).all():  # a NaN is no small error either
        allowed = checkpoint.rounding(text)[:end].clamp(min=TOLERANCE)
        wrong = (~(error <= allowed)).nonzero().flatten().tolist()
        assert not wrong, f"relative errors {error[wrong]} at positions {wrong}"


def run(stepper, texts, parts, next_count):
    """Feed texts to their ends; `next_count(i)` says how many of its tokens come next. Logits are
    added to `parts`."""
    while any(texts.values()):
        scheduled = {i: text[: next_count(i)] for i, text in texts.items() if text}
        scheduled = {i: tokens for i, tokens in scheduled.items() if tokens}
        if not scheduled:
            continue
        for i, logits in stepper.step(scheduled).items():
            parts[i].append(logits)
            texts[i] = texts[i][len(scheduled[i]) :]


def test_texts_in_pieces(variant, checkpoints, stepper_class):
    """One is read at once, one in chunks, and two decode beside these; then all but one decode."""
    checkpoint = checkpoints.get(variant)
    longest = variant.max_model_len
    lengths = [longest, *random.choices(range(longest // 2, longest), k=2), random.randint(2, TAIL)]
    texts = {i: draw(length) for i, length in enumerate(lengths)}
    stepper = stepper_class(
        checkpoint.path,
        longest,
        block_size=random.choice([4 if variant.groups_tokens else 3, 4, 8]),
        impl=variant.impl,
    )
    ours = {i: [] for i in texts}
    starts = {0: texts[0], 1: texts[1][:-TAIL], 2: texts[2][:-TAIL], 3: texts[3][:1]}
    prompts = {0: longest, 2: len(starts[2]) - random.randint(0, TAIL)}

    def next_count(i):
        if i in prompts and not ours[i]:
            return prompts[i]
        return random.choice([0, 1, 5, 9] if i == 1 else [0, 1])

    run(stepper, starts, ours, next_count)
    ends = {1: texts[1][-TAIL:], 2: texts[2][-TAIL:], 3: texts[3][1:]}
    run(stepper, ends, ours, lambda i: 1)
    for i, text in texts.items():
        theirs = checkpoint.logits(text, longest)
        assert_close(torch.cat(ours[i]), theirs, checkpoint, text)


@pytest.mark.slow  # it says of the references alone that they can tell
def test_references_are_far_from_uniform(variant, checkpoints):
    """The comparison means something only if order and context matter."""
    checkpoint = checkpoints.get(variant)
    text = draw(variant.max_model_len)
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
