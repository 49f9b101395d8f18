"""Multi-head attention whose four projections are batch-ensemble layers."""

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from besnn.errors import InputError
from besnn.layers.layer import BatchEnsembleLinear
from besnn.layers.members import Initialiser


class BatchEnsembleMultiheadAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` with batch-ensemble projections; made by conversion (`besnn.layers.batch_ensemble`).

    torch keeps the query, key and value weights in one parameter and applies them in fused code that would ignore the fast
    weights, so here they are three separate layers.

    >>> from besnn.layers import batch_ensemble, tile
    >>> attention = batch_ensemble(nn.MultiheadAttention(8, num_heads=2, batch_first=True), 4)
    >>> x = tile(torch.rand(3, 5, 8), 4)
    >>> list(attention(x, x, x)[0].shape)
    [12, 5, 8]
    """

    q_proj: BatchEnsembleLinear
    k_proj: BatchEnsembleLinear
    v_proj: BatchEnsembleLinear

    @classmethod
    def from_plain(cls, attention: nn.MultiheadAttention, members: int, init: Initialiser) -> Self:
        """Turn torch's module into this one *in place*, with its weights; `out_proj`, a separate layer, is left as it is."""
        batch_dim = 0 if attention.batch_first else 1
        weights = (
            _thirds(attention.in_proj_weight)
            if attention._qkv_same_embed_dim
            else (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight)
        )
        biases = (None,) * 3 if attention.in_proj_bias is None else _thirds(attention.in_proj_bias)
        for name in ("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            attention.register_parameter(name, None)
        attention._qkv_same_embed_dim = False
        for name, weight, bias in zip(("q_proj", "k_proj", "v_proj"), weights, biases, strict=True):
            projection = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
            projection.weight, projection.bias = weight, bias
            projection.train(attention.training)
            setattr(attention, name, BatchEnsembleLinear.from_plain(projection, members, init, batch_dim))
        attention.__class__ = cls
        assert isinstance(attention, cls)
        return attention

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return `(output, weights or None)` as torch's module does; the batch axis, also of masks, holds members · batch."""
        if query.ndim != 3:
            raise InputError(f"query has shape {list(query.shape)}: attention takes batches of sequences, so add a batch axis")
        if is_causal and attn_mask is None:
            raise InputError("is_causal=True is a hint about attn_mask, which is missing: pass the causal mask as attn_mask")
        q, k, v = (self._heads(layer(x)) for layer, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value)))
        mask = self._additive_mask(attn_mask, key_padding_mask, q)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.transpose(-2, -1) / self.head_dim**0.5
            weights = F.dropout(torch.softmax(scores if mask is None else scores + mask, dim=-1), dropout)
            attended = weights @ v
            weights = weights.mean(dim=1) if average_attn_weights else weights
        else:
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        attended = attended.transpose(1, 2).flatten(2)  # [rows, length, embed]
        return self.out_proj(attended if self.batch_first else attended.transpose(0, 1)), weights

    def _heads(self, x: Tensor) -> Tensor:
        """Reshape `[rows, length, embed]` (or length first) to `[rows, heads, length, head_dim]`."""
        x = x if self.batch_first else x.transpose(0, 1)
        heads: Tensor = x.unflatten(2, (self.num_heads, self.head_dim))
        return heads.transpose(1, 2)

    def _additive_mask(self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor) -> Tensor | None:
        def additive(mask: Tensor) -> Tensor:
            return torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else mask

        masks = []
        if attn_mask is not None:
            attn_mask = attn_mask if attn_mask.ndim == 2 else attn_mask.unflatten(0, (-1, self.num_heads))
            masks.append(additive(attn_mask))
        if key_padding_mask is not None:
            masks.append(additive(key_padding_mask)[:, None, None, :])
        return sum(masks[1:], masks[0]) if masks else None


def _thirds(joint: nn.Parameter) -> list[nn.Parameter]:
    """Split a joint parameter into those of query, key and value."""
    return [nn.Parameter(part.detach().clone(), requires_grad=joint.requires_grad) for part in joint.chunk(3)]
