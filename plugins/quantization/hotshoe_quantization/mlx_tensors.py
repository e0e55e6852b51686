"""The tensors of MLX's files under the names and in the layouts that layers know.

mlx-lm stacks the matrices of experts, has channels of convolutions last, cuts the second matrix of
latent attention in two by heads, and adds 1 to some norms. Embeddings and routers are quantized,
too. Source: files of mlx-lm, and what its models make of published ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers import FLOATS
from hotshoe.loader.sources import Described, Stored, TensorSource
from hotshoe_quantization.fp4 import power
from hotshoe_quantization.unpack import from_fp4, unpack

#: Parts of a matrix as layers ask for them; of integers of eight bits the half of 256 is taken off.
CODES, SCALES, BIASES = "codes", "code_scales", "code_biases"
#: Rows that become plain numbers at a time, so that what they pass through stays small.
ROWS = 4096
WORDS = frozenset({torch.uint32, torch.int32})
EXPERTS = (".switch_mlp.", ".experts.")
#: Names of single experts' matrices in blocks of this name.
MIXTRAL, MIXTRAL_PARTS = "block_sparse_moe", {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
#: The matrices of keys and of values of a head, and what both are in one.
KEYS, VALUES, BOTH = "embed_q", "unembed_out", "kv_b_proj"
#: Norms that have 1 more in MLX's files, of architectures that add it.
NORMS = tuple(
    f"{name}.weight"
    for name in ("input_layernorm", "post_attention_layernorm", "model.norm", "q_norm", "k_norm")
)


class Form(Protocol):
    """How a matrix is packed; see `hotshoe_quantization.mlx.Packing`."""

    @property
    def mode(self) -> str: ...

    @property
    def bits(self) -> int: ...

    @property
    def size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor that layers may ask for.

    Attributes:
        stored: The files' tensors that it is made of; first the one that has its numbers.
        make: Makes it.
        own: How many of those, from the first on, are its part of the file.
        stack: Matrices in each of them.
    """

    stored: tuple[str, ...]
    make: Callable[[], Tensor]
    own: int = 1
    stack: int = 1


class Decoded:
    """A source of the tensors of an MLX checkpoint. See `hotshoe.loader.sources.TensorSource`.

    Args:
        source: The files'.
        packing: Says how a matrix with scales is packed; None for plain numbers.
        keeps: Tells whether some layer takes a matrix packed.
        shifted: Norms have 1 more than layers want, if the files are in MLX's layout.

    Raises:
        CheckpointError: Parts of a matrix lack, or it is plain as config.json says.
    """

    def __init__(
        self,
        source: TensorSource,
        packing: Callable[[str], Form | None],
        keeps: Callable[[str], bool],
        shifted: bool,
    ) -> None:
        self._source, self._packing, self._keeps = source, packing, keeps
        self._known = dict.fromkeys(source.names())
        self._shifted = shifted and any(map(self._channels_last, self._known))
        self._entries: dict[str, _Entry] = {}
        for name in self._known:
            self._entries |= self._made_of(name)
        self._users = dict.fromkeys(self._known, 0)
        for entry in self._entries.values():
            for name in entry.stored:
                self._users[name] += 1
        if isinstance(source, Described):
            self.stored = self._stored

    def names(self) -> Iterable[str]:
        """Return the names as layers know them."""
        return self._entries

    def tensor(self, name: str) -> Tensor:
        """Return a tensor as layers know it.

        Raises:
            CheckpointError: Parts of a matrix are malformed, or do not belong together.
        """
        return self._entries[name].make()

    def taken(self, name: str) -> None:
        """Let go of the files' tensors with the last tensor that is made of them."""
        for stored in self._entries[name].stored:
            self._users[stored] -= 1
            if not self._users[stored]:
                self._source.taken(stored)

    def _stored(self, name: str) -> Stored:
        """Return the type, and the share of the size, in the file."""
        assert isinstance(self._source, Described)
        entry = self._entries[name]
        found = [self._source.stored(part) for part in entry.stored[: entry.own]]
        return Stored(found[0].type, sum(one.nbytes for one in found) // entry.stack)

    def _made_of(self, name: str) -> Mapping[str, _Entry]:
        """Return what layers know of a file's tensor; of parts of matrices with the first one."""
        layer, _, part = name.rpartition(".")
        block, _, matrix = layer.rpartition(".")
        if matrix in (KEYS, VALUES):
            return self._latent(block) if (matrix, part) == (KEYS, "weight") else {}
        quantized = f"{layer}.scales" in self._known
        if quantized and part in ("scales", "biases"):
            self._needs(layer, f"{layer}.weight")
            return {}
        if part not in ("weight", "bias") or not (quantized or self._is_stack(layer)):
            return {name: _Entry((name,), lambda: self._plain(name))}
        names = self._names_of(layer, name)
        if part == "bias" or not quantized:
            return {
                f"{known}.{part}": _Entry((name,), self._at(name, index), stack=len(names))
                for known, index in names
            }
        made: dict[str, _Entry] = {}
        for known, index in names:
            made |= self._parts(layer, known, index, len(names))
        return made

    def _parts(self, layer: str, known: str, index: int | None, stack: int) -> dict[str, _Entry]:
        """Return the parts of one quantized matrix, packed or plain, as they are wanted."""
        form = self._packing(layer)
        if form is None:
            raise CheckpointError(f"{layer} has scales, but config.json means plain numbers")
        stored = [f"{layer}.weight", f"{layer}.scales"]
        stored += [f"{layer}.biases"] if form.mode == "affine" else []
        self._needs(layer, *stored)
        matrix = _Matrix(self._source, layer, form, index)
        plain = {f"{known}.weight": _Entry(tuple(stored), matrix.plain, len(stored), stack)}
        if not self._keeps(known):
            return plain
        makes = {CODES: matrix.codes, SCALES: matrix.scales, BIASES: matrix.biases}
        packed = {}
        for first, (part, make) in zip(stored, makes.items(), strict=False):
            rest = tuple(name for name in stored if name != first)
            packed[f"{known}.{part}"] = _Entry((first, *rest), make, stack=stack)
        # Rows of an embedding are looked up as plain numbers, too.
        return packed | (plain if known.endswith("embed_tokens") else {})

    def _needs(self, layer: str, *names: str) -> None:
        if missing := [name for name in names if name not in self._known]:
            raise CheckpointError(
                f"the checkpoint lacks {' and '.join(missing)}, beside other parts of {layer}; "
                "fetch or convert it again"
            )

    def _is_stack(self, layer: str) -> bool:
        """Tell whether a tensor is a part of the matrices of all experts."""
        if not any(part in f"{layer}." for part in EXPERTS) or layer.split(".")[-2].isdecimal():
            return False
        return layer.rpartition(".")[2] in MIXTRAL_PARTS

    def _names_of(self, layer: str, name: str) -> list[tuple[str, int | None]]:
        """Return the names of matrices in a tensor, and their places in it."""
        if not self._is_stack(layer):
            return [(layer, None)]
        block, _, matrix = layer.rpartition(".")
        block = block.removesuffix(".switch_mlp").removesuffix(".experts")
        matrix = MIXTRAL_PARTS[matrix] if block.endswith(MIXTRAL) else matrix
        count = len(self._source.tensor(name))
        return [(f"{block}.experts.{i}.{matrix}", i) for i in range(count)]

    def _at(self, name: str, index: int | None) -> Callable[[], Tensor]:
        return lambda: (
            self._source.tensor(name) if index is None else self._source.tensor(name)[index]
        )

    def _plain(self, name: str) -> Tensor:
        """Return a tensor that is not quantized, in the layout that layers know."""
        tensor = self._source.tensor(name)
        if name.endswith(".weight") and tensor.dtype in WORDS:
            raise CheckpointError(
                f"{name} holds packed numbers, but the checkpoint lacks "
                f"{name.removesuffix('weight')}scales; fetch or convert it again"
            )
        if self._channels_last(name):
            return tensor.mT
        if self._shifted and name.endswith(NORMS) and tensor.dim() == 1:
            return tensor.float() - 1
        return tensor

    def _channels_last(self, name: str) -> bool:
        """Tell whether a tensor is that of a convolution [channels, taps, 1]."""
        if not name.endswith(("conv1d.weight", "conv.weight")):
            return False
        shape = self._source.tensor(name).shape
        return len(shape) == 3 and shape[2] == 1 != shape[1]

    def _latent(self, block: str) -> Mapping[str, _Entry]:
        """Return the matrix of keys and values of latent attention, which files have by heads."""
        stored, made = [], []
        for layer in (f"{block}.{KEYS}", f"{block}.{VALUES}"):
            parts = [n for n in ("weight", "scales", "biases") if f"{layer}.{n}" in self._known]
            stored += [f"{layer}.{part}" for part in parts]
            self._needs(block, f"{layer}.weight")
            form = self._packing(layer) if "scales" in parts else None
            one = (
                _Matrix(self._source, layer, form, None).plain
                if form
                else self._at(f"{layer}.weight", None)
            )
            made.append(one)

        def both() -> Tensor:
            keys, values = made[0](), made[1]()
            if keys.dim() != 3 or values.dim() != 3 or len(keys) != len(values):
                raise CheckpointError(f"{block}.{KEYS} and {VALUES} are not of the same heads")
            if keys.shape[1] != values.shape[2]:
                raise CheckpointError(f"{block}.{KEYS} and {VALUES} have latents of two sizes")
            return torch.cat([keys.mT, values], 1).flatten(0, 1)

        return {f"{block}.{BOTH}.weight": _Entry(tuple(stored), both, len(stored))}


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A quantized matrix [..., outputs, inputs] of a file, or one of a stack."""

    source: TensorSource
    layer: str
    form: Form
    index: int | None

    def _tensor(self, part: str) -> Tensor:
        """Return a part.

        Raises:
            CheckpointError: It is not what belongs to the scales beside it.
        """
        name = f"{self.layer}.{part}"
        tensor, scales = self.source.tensor(name), self.source.tensor(f"{self.layer}.scales")
        words = scales.shape[-1] * self.form.size * self.form.bits
        last = words // 32 if part == "weight" else scales.shape[-1]
        if tensor.shape != (*scales.shape[:-1], last) or scales.dim() < 2:
            raise CheckpointError(
                f"{name} has shape {list(tensor.shape)} beside scales {list(scales.shape)}, which "
                f"do not fit {self.form.bits} bits and a group_size of {self.form.size}, as "
                "quantization of config.json says; correct it, or convert the checkpoint again"
            )
        if part == "weight":
            fits = tensor.dtype in WORDS
        elif self.form.mode == "affine":
            fits = tensor.dtype in FLOATS
        else:
            fits = tensor.element_size() == 1
        if not fits:
            raise CheckpointError(
                f"{name} is of type {tensor.dtype}, which mode {self.form.mode} does not have; "
                "correct quantization in config.json, or convert the checkpoint again"
            )
        return tensor if self.index is None else tensor[self.index]

    def _numbers(self, words: Tensor) -> Tensor:
        """Return integers, floats of four bits doubled, or floats of eight."""
        bits, mode = self.form.bits, self.form.mode
        if mode == "mxfp8":
            return words.contiguous().view(torch.float8_e4m3fn)
        codes = unpack(words, bits, words.shape[-1] * 32 // bits)
        if mode != "affine":
            return from_fp4(codes)
        return (codes ^ 128 if bits == 8 else codes).view(torch.int8)

    def codes(self) -> Tensor:
        """Return the numbers that are to be multiplied by scales."""
        return self._numbers(self._tensor("weight"))

    def scales(self) -> Tensor:
        """Return scales in float32."""
        scales = self._tensor("scales")
        if self.form.mode == "affine":
            return scales.float()
        if self.form.mode == "nvfp4":
            return scales.view(torch.float8_e4m3fn).float() / 2
        return power(scales) / (2 if self.form.mode == "mxfp4" else 1)

    def biases(self) -> Tensor:
        """Return biases in float32: those of `codes`, less 128 where they have eight bits."""
        biases = self._tensor("biases").float()
        return biases + 128 * self.scales() if self.form.bits == 8 else biases

    def plain(self) -> Tensor:
        """Return the matrix as plain numbers, of the type of its scales where these are floats."""
        words, scales = self._tensor("weight"), self.scales()
        kind = self._tensor("scales").dtype if self.form.mode == "affine" else torch.bfloat16
        rows, columns = scales.shape[-2], scales.shape[-1] * self.form.size
        made = torch.empty(*scales.shape[:-1], columns, dtype=kind)
        bias = self.biases() if self.form.mode == "affine" else torch.zeros_like(scales)
        for begin in range(0, rows, ROWS):
            cut = (..., slice(begin, begin + ROWS), slice(None))
            wide = self._numbers(words[cut]).float().unflatten(-1, (-1, self.form.size))
            part = wide * scales[cut][..., None] + bias[cut][..., None]
            made[cut] = part.flatten(-2).to(kind)
        return made
