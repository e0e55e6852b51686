"""DeBERTa v2 and v3, as rerankers and classifiers have it: BERT whose attention knows distances.

Sources: He et al. 2020, arXiv:2006.03654; He et al. 2021, arXiv:2111.09543. Defaults are those of
transformers' DebertaV2Config.
"""

from __future__ import annotations

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.bert import UNUSED
from hotshoe_models.disentangled import Distances
from hotshoe_models.encoder import Encoder
from hotshoe_models.encoder_spec import EncoderLayer, EncoderNames, EncoderSpec, Relative
from hotshoe_models.values import PLAIN_ACTIVATIONS, activation, number, refuse, with_defaults

DEFAULTS = {
    "vocab_size": 128100,
    "hidden_size": 1536,
    "num_hidden_layers": 24,
    "num_attention_heads": 24,
    "intermediate_size": 6144,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
    "relative_attention": False,
    "position_biased_input": True,
}
NORMED, TERMS = "layer_norm", ("c2p", "p2c")
NAMES = EncoderNames(
    positions=None,
    types=None,
    qkv=tuple(f"attention.self.{name}_proj" for name in ("query", "key", "value")),
    prefixes=r"deberta\.",
    unused=(*UNUSED, r"^mask_predictions\.", r"^lm_predictions\."),
)


def build(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build DebertaV2Model.

    Raises:
        CheckpointError: The file asks for what is not served.
    """
    config = with_defaults(config, DEFAULTS)
    size = config.size("hidden_size")
    for name, served in (("conv_kernel_size", 0), ("type_vocab_size", 0), ("embedding_size", size)):
        if config.get(name, served) != served:
            raise refuse(config, name, f"is served with {served}")
    for name, served in (("relative_attention", True), ("position_biased_input", False)):
        if config.get(name) is not served:
            raise refuse(config, name, f"is served where it is {str(served).lower()}")
    if config.get("share_att_key") is not True:
        raise refuse(config, "share_att_key", "is served where positions share matrices with words")
    spec = EncoderSpec(
        vocab_size=config.size("vocab_size"),
        hidden_size=size,
        num_heads=config.size("num_attention_heads"),
        intermediate_size=config.size("intermediate_size"),
        layers=(EncoderLayer(),) * config.size("num_hidden_layers"),
        norm_eps=number(config, "layer_norm_eps"),
        activation=activation(config, "hidden_act", PLAIN_ACTIVATIONS),
        names=NAMES,
        relative=Relative("encoder.rel_embeddings", _norm(config), _distances(config)),
    )
    return Encoder(spec, ctx)


def _norm(config: ModelConfig) -> str | None:
    """Return the norm of the rows of distances."""
    kinds = {kind.strip() for kind in str(config.get("norm_rel_ebd", "none")).lower().split("|")}
    if kinds not in ({NORMED}, {"none"}):
        raise refuse(config, "norm_rel_ebd", f"knows only {NORMED} and none")
    return "encoder.LayerNorm" if NORMED in kinds else None


def _distances(config: ModelConfig) -> Distances:
    """Read how distances share rows.

    Raises:
        CheckpointError: A value is malformed, or the rows reach farther than the distances.
    """
    named = config.get("pos_att_type") or []
    terms = set(named.split("|") if isinstance(named, str) else map(str, named))
    if not terms <= set(TERMS):
        raise refuse(config, "pos_att_type", f"knows only {' and '.join(TERMS)}")
    farthest = config.get("max_relative_positions", -1)
    if not isinstance(farthest, int) or farthest < 1:
        farthest = config.size("max_position_embeddings")
    c2p, p2c = (term in terms for term in TERMS)
    buckets = config.get("position_buckets", -1)
    if not isinstance(buckets, int) or buckets < 1:
        return Distances(farthest, 0, c2p, p2c)
    if not 2 <= buckets < 2 * farthest - 2:
        raise CheckpointError(
            f"config.json: position_buckets is {buckets}, but distances of up to {farthest} have "
            f"2 to {2 * farthest - 3}"
        )
    return Distances(buckets, farthest, c2p, p2c)
