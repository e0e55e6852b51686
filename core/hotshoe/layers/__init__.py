"""Building blocks of models. Each asks a slot for its operation; none knows any hardware."""

from hotshoe.layers.activation import GatedActivation
from hotshoe.layers.adapters import AdapterLimits, AdapterTable, Changes
from hotshoe.layers.attention import Attention, QkNorm
from hotshoe.layers.block_attention import BlockAttention, GroupAttention
from hotshoe.layers.cache import CacheLayer, ViewPlan, allocate_caches, assign_views
from hotshoe.layers.compressed import (
    CompressedAttention,
    Compressor,
    CompressorNames,
    EntryIndexer,
    GroupIndexer,
)
from hotshoe.layers.context import BuildContext, ForwardBatch
from hotshoe.layers.formats import (
    FLOATS,
    OnlineFormat,
    Share,
    Storage,
    TensorSpec,
    WeightFormat,
    checked_format,
    stored_kv_scales,
)
from hotshoe.layers.gated_delta import DeltaNames, GatedDelta, delta_rows
from hotshoe.layers.indexer import Asked, Chooser, Indexer
from hotshoe.layers.latent import LatentAttention, LatentNames
from hotshoe.layers.limits import before_silu, clamped
from hotshoe.layers.linear import Linear
from hotshoe.layers.matrix import Matrix
from hotshoe.layers.mlp import PLAIN_ACTIVATIONS, GatedMLP, PlainMLP
from hotshoe.layers.moe import Mixture, MoE, MoeNames, RoutedExperts, Stacked
from hotshoe.layers.norm import AddRMSNorm, RMSNorm
from hotshoe.layers.other_norms import DividedRMSNorm, LayerNorm
from hotshoe.layers.relative_attention import RelativeAttention
from hotshoe.layers.rg_lru import RgLru
from hotshoe.layers.rotary import Rotary, Rotation, learned
from hotshoe.layers.scores import Scores
from hotshoe.layers.selective import SelectiveScan
from hotshoe.layers.shared import SharedAttention
from hotshoe.layers.short_conv import ShortConv
from hotshoe.layers.split import Section, Split
from hotshoe.layers.state_space import StateSpace
from hotshoe.layers.states import SmallWeight, decay_rates
from hotshoe.layers.temperature import HeadTemperature, LogTemperature, Temperature
from hotshoe.layers.vocabulary import Embedding, Logits
from hotshoe.layers.weights import HOST, Holder, Place, WeightTable

__all__ = [
    "FLOATS",
    "HOST",
    "PLAIN_ACTIVATIONS",
    "AdapterLimits",
    "AdapterTable",
    "AddRMSNorm",
    "Asked",
    "Attention",
    "BlockAttention",
    "BuildContext",
    "CacheLayer",
    "Changes",
    "Chooser",
    "CompressedAttention",
    "Compressor",
    "CompressorNames",
    "DeltaNames",
    "DividedRMSNorm",
    "Embedding",
    "EntryIndexer",
    "ForwardBatch",
    "GatedActivation",
    "GatedDelta",
    "GatedMLP",
    "GroupAttention",
    "GroupIndexer",
    "HeadTemperature",
    "Holder",
    "Indexer",
    "LatentAttention",
    "LatentNames",
    "LayerNorm",
    "Linear",
    "LogTemperature",
    "Logits",
    "Matrix",
    "Mixture",
    "MoE",
    "MoeNames",
    "OnlineFormat",
    "Place",
    "PlainMLP",
    "QkNorm",
    "RMSNorm",
    "RelativeAttention",
    "RgLru",
    "Rotary",
    "Rotation",
    "RoutedExperts",
    "Scores",
    "Section",
    "SelectiveScan",
    "Share",
    "SharedAttention",
    "ShortConv",
    "SmallWeight",
    "Split",
    "Stacked",
    "StateSpace",
    "Storage",
    "Temperature",
    "TensorSpec",
    "ViewPlan",
    "WeightFormat",
    "WeightTable",
    "allocate_caches",
    "assign_views",
    "before_silu",
    "checked_format",
    "clamped",
    "decay_rates",
    "delta_rows",
    "learned",
    "stored_kv_scales",
]
