"""The batch-ensemble linear layer."""

import torch.nn.functional as F
from torch import Tensor, nn

from besnn.layers.layer import BatchEnsembleLayer


class BatchEnsembleLinear(BatchEnsembleLayer, nn.Linear):  # type: ignore[misc]  # torch annotates bias differently here
    """`nn.Linear` with `members=`: `[members · batch, ..., in] → [members · batch, ..., out]`.

    >>> import torch
    >>> from besnn.layers import tile
    >>> layer = BatchEnsembleLinear(3, 5, members=4)
    >>> list(layer(tile(torch.ones(2, 3), 4)).shape)
    [8, 5]
    """

    channel_dim = -1

    def channels(self) -> tuple[int, int]:
        """`(in_features, out_features)`."""
        return self.in_features, self.out_features

    def shared(self, x: Tensor) -> Tensor:
        """The product with the shared weight."""
        return F.linear(x, self.weight)
