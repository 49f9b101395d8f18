"""The batch-ensemble mechanism: layers, norms, conversion of whole networks, and folding for inference."""

from besnn.layers.attention import BatchEnsembleMultiheadAttention
from besnn.layers.convert import batch_ensemble
from besnn.layers.folding.fold import WithLayerOutputs, find_layer, fold
from besnn.layers.layer import (
    BatchEnsembleConv1d,
    BatchEnsembleConv2d,
    BatchEnsembleConv3d,
    BatchEnsembleConvTranspose2d,
    BatchEnsembleLayer,
    BatchEnsembleLinear,
    fast_parameters,
    members_of,
)
from besnn.layers.members import Initialiser, initialiser, mirror_views, normal, ones, random_sign, split_members, tile
from besnn.layers.norm import MemberBatchNorm1d, MemberBatchNorm2d, MemberBatchNorm3d

__all__ = [
    "BatchEnsembleConv1d",
    "BatchEnsembleConv2d",
    "BatchEnsembleConv3d",
    "BatchEnsembleConvTranspose2d",
    "BatchEnsembleLayer",
    "BatchEnsembleLinear",
    "BatchEnsembleMultiheadAttention",
    "Initialiser",
    "MemberBatchNorm1d",
    "MemberBatchNorm2d",
    "MemberBatchNorm3d",
    "WithLayerOutputs",
    "batch_ensemble",
    "fast_parameters",
    "find_layer",
    "fold",
    "initialiser",
    "members_of",
    "mirror_views",
    "normal",
    "ones",
    "random_sign",
    "split_members",
    "tile",
]
