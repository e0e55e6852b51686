"""MPNet: BERT with a bias by distance in place of types of tokens, positions from 2.

Source: Song et al. 2020, arXiv:2004.09297. Defaults are BERT's, but for those
of transformers' MPNetConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.bert import DEFAULTS as BERT
from hotshoe_models.bert import OFFSET, UNUSED, bert_spec
from hotshoe_models.distances import Buckets
from hotshoe_models.encoder import Encoder
from hotshoe_models.encoder_spec import EncoderNames
from hotshoe_models.values import refuse, with_defaults

DEFAULTS = {"vocab_size": 30527, "relative_attention_num_buckets": 32, "pad_token_id": 1}
#: Rows that its rule knows, whatever a file says.
ROWS = 32
NAMES = EncoderNames(
    types=None,
    qkv=tuple(f"attention.attn.{name}" for name in "qkv"),
    o="attention.attn.o",
    attention_norm="attention.LayerNorm",
    prefixes=r"mpnet\.",
    unused=UNUSED,
)


def build(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build MPNetModel."""
    config = with_defaults(config, BERT | DEFAULTS | {"type_vocab_size": 1})
    if config.size("relative_attention_num_buckets") != ROWS:
        raise refuse(config, "relative_attention_num_buckets", f"is served with {ROWS}")
    spec = bert_spec(config, ctx, "", position_offset=OFFSET)
    bias = Buckets("encoder.relative_attention_bias", ROWS)
    return Encoder(replace(spec, names=NAMES, num_types=0, bias=bias), ctx)
