"""Operations on Metal: a shader of our own for the norm, PyTorch's operations for the rest.

A shader takes tensors alone, as numbers have other types in Metal than in Python. Where the device
is a processor, `Played` stands for the compiled shader and gets the same arguments.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    PLAIN_LAYOUT,
    AttentionMetadata,
    AttentionSpec,
    LinearSpec,
    NormSpec,
    SampleSpec,
    renewed,
    whole_step,
)
from hotshoe.slots.reference import sampling

#: Names of types in Metal; a row has a thread, so that no row depends on another.
TYPES = {"float32": "float", "float16": "half", "bfloat16": "bfloat"}
SOURCE = """
#include <metal_stdlib>
kernel void rms_norm(
    device TYPE* out, device const TYPE* x, device const TYPE* weight,
    device const int* size, device const float* eps_and_offset,
    uint row [[thread_position_in_grid]]) {
  const int n = size[0];
  device const TYPE* from = x + row * n;
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += float(from[i]) * float(from[i]);
  const float scale = metal::precise::rsqrt(sum / n + eps_and_offset[0]);
  for (int i = 0; i < n; ++i)
    out[row * n + i] = TYPE(float(from[i]) * scale * (float(weight[i]) + eps_and_offset[1]));
}
"""


class Played:
    """What `torch.mps.compile_shader` returns, on a processor."""

    @staticmethod
    def rms_norm(out: Tensor, x: Tensor, weight: Tensor, size: Tensor, more: Tensor, threads: int):
        """Do for each of so many rows what the shader does."""
        assert x.shape == out.shape == (threads, int(size)) and x.is_contiguous()
        for to, row in zip(out, x.float(), strict=True):
            scale = torch.rsqrt(row.square().sum() / int(size) + more[0])
            to.copy_(row * scale * (weight.float() + more[1]))


def build_norm(spec: NormSpec, facts: DeviceFacts) -> Callable[[Tensor, Tensor], Tensor]:
    """Build candidate `metal` of slot `rms_norm`."""
    source = SOURCE.replace("TYPE", TYPES[spec.dtype])
    library: Any = torch.mps.compile_shader(source) if "shaders" in facts.features else Played
    size = torch.tensor([spec.hidden_size], dtype=torch.int32, device=facts.device)
    more = torch.tensor([spec.eps, spec.weight_offset], device=facts.device)

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        if len(x):
            library.rms_norm(out, x.contiguous(), weight, size, more, threads=len(x))
        return out

    return norm


class Linear:
    """Candidate `metal` of slot `linear`."""

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        self._place = (facts.device, getattr(torch, spec.dtype))
        self._weight = self._bias = torch.empty(0)
        self._has_bias = spec.bias

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        self._weight = renewed(self._weight, torch.cat(list(tensors["weight"])).to(*self._place))
        if self._has_bias:
            self._bias = renewed(self._bias, torch.cat(list(tensors["bias"])).to(*self._place))

    def state(self) -> dict[str, Tensor]:
        held = {"weight": self._weight, "bias": self._bias}
        return {name: tensor for name, tensor in held.items() if tensor.numel()}

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias if self._has_bias else None)

    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.state().values())


class Attention:
    """Candidate `metal` of slot `attention`: PyTorch's attention, request by request."""

    layout = PLAIN_LAYOUT
    prepare = staticmethod(whole_step)

    def __init__(self, spec: AttentionSpec, facts: DeviceFacts) -> None:
        self._spec = spec
        self._heads = (spec.block_size, spec.num_kv_heads, spec.head_dim)

    def __call__(
        self, q: Tensor, cache: Tensor, prepared: AttentionMetadata, sinks: Tensor | None
    ) -> Tensor:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        starts, lengths = prepared.query_start_loc.tolist(), prepared.seq_lens.tolist()
        blocks = cache.view(*cache.shape[:2], *self._heads)
        for i, length in enumerate(lengths):
            step = slice(starts[i], starts[i + 1])
            used = prepared.block_table[i, : -(-length // self._spec.block_size)].long()
            # [num_kv_heads, length, head_dim]
            k, v = blocks[:, used].flatten(1, 2)[:, :length].transpose(1, 2)
            out[step] = functional.scaled_dot_product_attention(
                q[step].transpose(0, 1)[None],
                k[None],
                v[None],
                attn_mask=self._seen(step.stop - step.start, length, q.device),
                scale=self._spec.scale,
                enable_gqa=True,
            )[0].transpose(0, 1)
        return out.flatten(1)

    def _seen(self, count: int, length: int, device: torch.device) -> Tensor:
        """Return [count, length] bool: the keys that each of the last queries sees."""
        own = torch.arange(length - count, length, device=device)[:, None]
        keys = torch.arange(length, device=device)
        seen = keys <= own
        return seen if self._spec.window is None else seen & (keys > own - self._spec.window)


def build_sample(spec: SampleSpec, facts: DeviceFacts) -> Callable[..., Tensor]:
    """Build candidate `host` of slot `sample`: core's reference, on the host."""
    reference = sampling.build(spec, facts)

    def sample(logits: Tensor, *settings: Tensor) -> Tensor:
        here = (logits.cpu(), *(setting.cpu() for setting in settings))
        return reference(*here).to(logits.device)

    return sample
