"""Building blocks of models. Each asks a slot for its operation; none knows any hardware."""

from hotshoe.layers.activation import GatedActivation
from hotshoe.layers.attention import Attention
from hotshoe.layers.context import BuildContext, ForwardBatch, Quantization
from hotshoe.layers.embedding import Embedding
from hotshoe.layers.linear import Linear, Matrix
from hotshoe.layers.logits import Logits
from hotshoe.layers.mlp import GatedMLP
from hotshoe.layers.norm import AddRMSNorm, RMSNorm
from hotshoe.layers.rotary import Rotary, Rotation
from hotshoe.layers.split import Section, Split
from hotshoe.layers.weights import WeightTable

__all__ = [
    "AddRMSNorm",
    "Attention",
    "BuildContext",
    "Embedding",
    "ForwardBatch",
    "GatedActivation",
    "GatedMLP",
    "Linear",
    "Logits",
    "Matrix",
    "Quantization",
    "RMSNorm",
    "Rotary",
    "Rotation",
    "Section",
    "Split",
    "WeightTable",
]
