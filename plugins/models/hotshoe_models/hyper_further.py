"""The layer of a decoder with hyper-connections that predicts a further token, for drafts.

It takes the streams behind the decoder's last block, each normed and multiplied by one matrix, and
adds to each of them what another matrix makes of the embedding of the token behind. A layer of the
decoder's shape follows, and a mixing and a norm of its own. Embedding and output matrix are the
decoder's. Further drafts of a chain read the streams behind that layer.

Source: the names and shapes of DeepSeek V4's published tensors, and its report, section 2.4.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from hotshoe.layers import BuildContext, ForwardBatch, Linear, Matrix
from hotshoe.models.base import GENERATE
from hotshoe.types.trees import NoTreesError
from hotshoe_models.decoder import build_rotaries
from hotshoe_models.hyper import HyperConnection, HyperDecoder, HyperLayer
from hotshoe_models.per_layer import norm
from hotshoe_models.spec import DecoderSpec, LayerSpec

LAYER = "mtp.{}."


class HyperFurther:
    """See `hotshoe.models.base.DraftHead`.

    Args:
        spec, ctx: Of the decoder.
        model: It keeps its streams for this layer.
        layer: What the layer is; tokens do not choose its experts.

    Raises:
        NoTreesError: Drafts are trees.
    """

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, model: HyperDecoder, layer: LayerSpec
    ) -> None:
        if ctx.tree is not None:
            raise NoTreesError(
                "the model attends to windows and to compressed entries, where the nodes of a tree "
                "have no places"
            )
        ctx = replace(ctx, adapters=None)  # adapters are trained without it
        spec = replace(spec, layers=(layer,), names=replace(spec.names, layer=LAYER))
        self._size, prefix, before = spec.hidden_size, LAYER.format(0), len(ctx.cache_layers)
        model.keep_streams()
        self._model = model
        self._embedding_norm, self._stream_norm, self._norm = (
            norm(spec, ctx, prefix + name) for name in ("enorm", "hnorm", "norm")
        )
        self._of_embedding, self._of_stream = (
            Linear(ctx, Matrix(ctx, [(prefix + name, self._size)], self._size))
            for name in ("e_proj", "h_proj")
        )
        self._layer = HyperLayer(spec.sized(0), ctx, 0, build_rotaries(ctx, spec.layers), {})
        self._leave = HyperConnection(spec, ctx, f"{prefix}hc_head_", ends=True)
        self.cache_layers = ctx.cache_layers[before:]

    def forward(self, ids: Tensor, hidden: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """See `hotshoe.models.base.DraftHead`; the decoder's streams lie behind its final states,
        which this head does not take."""
        size = self._size
        if hidden.shape[1] // size > self._model.count:
            hidden = hidden[:, size:]
        embedded = self._model.embed(ids)[:, :size].contiguous()
        joined = self._of_embedding(self._embedding_norm(embedded))[:, None]
        streams = self._of_stream(self._stream_norm(hidden.reshape(-1, size)))
        streams = streams.view(len(ids), -1, size) + joined
        streams, block = self._layer(streams, None, None, batch, batch.outputs_at)
        streams, left, _ = self._leave(streams, block)
        return streams.flatten(1), self._norm(left)

    def guess(self, hidden: Tensor) -> Tensor:
        """Return the likeliest tokens [n] for hidden [n, hidden_size]."""
        return self._model.head(hidden, GENERATE).argmax(1)
