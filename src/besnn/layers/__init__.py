"""The batch-ensemble mechanism: layers, norms, conversion of whole networks, and folding for inference."""

from besnn.layers.attention import BatchEnsembleMultiheadAttention
from besnn.layers.convert import batch_ensemble
from besnn.layers.folding.fold import fold
from besnn.layers.layer import (
    BatchEnsembleConv1d,
    BatchEnsembleConv2d,
    BatchEnsembleConv3d,
    BatchEnsembleConvTranspose2d,
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
    "BatchEnsembleLinear",
    "BatchEnsembleMultiheadAttention",
    "Initialiser",
    "MemberBatchNorm1d",
    "MemberBatchNorm2d",
    "MemberBatchNorm3d",
    "batch_ensemble",
    "fast_parameters",
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
