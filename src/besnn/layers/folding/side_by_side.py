"""Members side by side on a GPU: one member's layers leave a part of it idle."""

from typing import Any

import torch
from torch import fx


class SideBySide(fx.Interpreter):
    """Runs a folded network with the operations of each member on a CUDA stream of its own.

    It is made to be recorded, once. What passes from one stream to another lives until the end: its memory may not be used
    again while another stream still reads it.

    Args:
        folded: as `besnn.layers.folding.fold` makes it, on a GPU.
    """

    def __init__(self, folded: fx.GraphModule) -> None:
        super().__init__(folded)
        self.passed_on: list[Any] = []
        self.streams: dict[int, torch.cuda.Stream] = {}
        self.stream_of: dict[fx.Node, torch.cuda.Stream] = {}

    def run_node(self, node: fx.Node) -> Any:
        """Runs one operation after all that it needs."""
        here = torch.cuda.current_stream()
        member = node.meta.get("member")
        stream = here if member is None else self.streams.setdefault(member, torch.cuda.Stream())
        for argument in node.all_input_nodes:
            if self.stream_of[argument] != stream:
                stream.wait_stream(self.stream_of[argument])
                self.passed_on.append(self.env[argument])
        self.stream_of[node] = stream
        with torch.cuda.stream(stream):
            return super().run_node(node)
