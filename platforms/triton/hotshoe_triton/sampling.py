"""Candidate of slot `sample`: a survey of the logits in chunks, then one program per row."""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import SampleSpec, Verdict
from hotshoe_triton.device import chaining, judge, next_power_of_2

#: Logits that one program of the survey walks, and that share one noted maximum.
CHUNK, GROUP = 4096, 128
#: Entries that a shortlist of a row may have.
ROOM = 2048


def supports(spec: SampleSpec, facts: DeviceFacts) -> Verdict:
    """Accept every vocabulary."""
    return judge(facts, "float32")


class Sample:
    """See `hotshoe.slots.RecordableSampleOp`."""

    recordable = True

    def __init__(
        self,
        spec: SampleSpec,
        facts: DeviceFacts,
        chunk: int = CHUNK,
        group: int = GROUP,
        room: int = ROOM,
    ) -> None:
        from hotshoe_triton.kernels.sampling import choose, survey

        self._survey, self._choose = survey, choose
        self._chunks = -(-spec.vocab_size // chunk)
        self._groups = self._chunks * chunk // group
        block_g = next_power_of_2(self._groups)
        self._scratch = block_g + 2 * room
        sizes = {
            "SIZE": spec.vocab_size,
            "CHUNK": chunk,
            "NUM_CHUNKS": self._chunks,
            "GROUP": group,
        } | chaining(facts)
        self._survey_constants = sizes | {"num_warps": 8}
        self._choose_constants = sizes | {
            "BLOCK_C": next_power_of_2(self._chunks),
            "BLOCK_G": block_g,
            "ROOM": room,
            "num_warps": 16,
        }

    def __call__(
        self,
        logits: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        uniform: Tensor,
    ) -> Tensor:
        rows, device = logits.size(0), logits.device
        tokens = torch.empty(rows, dtype=torch.int64, device=device)
        if rows == 0:
            return tokens
        notes = torch.empty((rows, self._chunks, 2), dtype=torch.float32, device=device)
        where = torch.empty((rows, self._chunks), dtype=torch.int32, device=device)
        groups = torch.empty((rows, self._groups), dtype=torch.float32, device=device)
        scratch = torch.empty((rows, self._scratch), dtype=torch.int32, device=device)
        notes = (notes, where, groups)
        stride = logits.stride(0)
        self._survey[(rows, self._chunks)](
            *notes, logits, temperature, stride, **self._survey_constants
        )
        filters = (temperature, top_k, top_p, min_p, uniform)
        self._choose[(rows,)](
            tokens, *notes, scratch, logits, *filters, stride, **self._choose_constants
        )
        return tokens
