"""The gradients of a step, compiled: forward, backward and the penalty's second backward as one graph.

`torch.compile` cannot differentiate twice. But once a whole step is written down, gradients included, there is nothing left to
differentiate: it is one list of operations, which the compiler fuses like any other.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from besnn.training.device import Key, Step, Terms, key_of

COMPILE_FROM = 1e13
"""Numbers that the layers write in all steps of one kind: with fewer, compiling such a step takes longer than it saves."""

_logger = logging.getLogger(__name__)
_OPTIONS = {"fallback_random": True}  # the random numbers that the plain step draws


@contextmanager
def numbers_written(module: nn.Module) -> Iterator[list[int]]:
    """Notes how many numbers each layer writes while the context lasts.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> with numbers_written(network) as written:
    ...     y = network(torch.rand(5, 2))
    >>> written
    [15, 15]
    """
    written: list[int] = []
    layers = [each for each in module.modules() if next(each.children(), None) is None]

    def note(layer: nn.Module, arguments: Any, output: Any) -> None:
        written.append(sum(each.numel() for each in tree_leaves(output) if isinstance(each, Tensor)))  # some return several

    hooks = [each.register_forward_hook(note) for each in layers]
    try:
        yield written
    finally:
        for hook in hooks:
            hook.remove()


class CompiledStep:
    """A step that compiles itself for the combinations of factors that are worth it.

    Where compiling fails (control flow that depends on values, a machine without a compiler), the plain step goes on.

    Args:
        plain: the step as it is.
        module: maps a batch, labels and factors to the loss terms; its parameters' gradients are what the step fills.
        counts: how many steps the run has of each combination of factors.
        context: what the module is to run in, such as a mixed precision.
        backend: the compiler, by torch's names.
    """

    def __init__(
        self,
        plain: Step,
        module: nn.Module,
        counts: Mapping[Key, int],
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
        backend: str = "inductor",
    ) -> None:
        self.plain, self.module, self.counts, self.context, self.backend = plain, module, counts, context, backend
        self.written: dict[Key, int] = {}
        self.compiled: dict[Key, Callable[[Tensor, Tensor], Terms]] = {}
        self.failed = False

    def __call__(self, x: Tensor, labels: Tensor, factors: Mapping[str, float]) -> Terms:
        """The loss terms; the gradients are in place."""
        key = key_of(factors)
        if key in self.compiled:
            return self.compiled[key](x, labels)
        if key not in self.written:
            with numbers_written(self.module) as written:
                terms = self.plain(x, labels, factors)
            self.written[key] = sum(written)
            return terms
        if self.failed or self.counts[key] * self.written[key] < COMPILE_FROM:
            return self.plain(x, labels, factors)
        try:
            step = self._compile(x, labels, factors)
            terms = step(x, labels)
        except Exception as error:  # whatever ails the compiler, training goes on without it
            _logger.info("training goes on without a compiled step (%s: %s)", type(error).__name__, error)
            self.failed = True
            return self.plain(x, labels, factors)
        self.compiled[key] = step
        return terms

    def _compile(self, x: Tensor, labels: Tensor, factors: Mapping[str, float]) -> Callable[[Tensor, Tensor], Terms]:
        named = {name: parameter for name, parameter in self.module.named_parameters() if parameter.requires_grad}
        parameters = list(named.values())
        buffers = dict(self.module.named_buffers())
        names: list[str] = []

        def gradients(values: list[Tensor], x: Tensor, labels: Tensor, state: list[Tensor]) -> tuple[list[Tensor], list[Any]]:
            leaves = [value.detach().requires_grad_() for value in values]
            substitutes = dict(zip(named, leaves, strict=True)) | dict(zip(buffers, state, strict=True))
            with self.context():
                terms: Terms = functional_call(self.module, substitutes, (x, labels, factors))
            names[:] = terms
            loss = torch.stack(list(terms.values())).sum()
            return list(terms.values()), list(torch.autograd.grad(loss, leaves, allow_unused=True))

        values, state = [parameter.detach() for parameter in parameters], list(buffers.values())
        graph = make_fx(gradients, tracing_mode="fake")(values, x, labels, state)
        options: dict[str, Any] = {"options": _OPTIONS} if self.backend == "inductor" else {}
        run = torch.compile(graph, fullgraph=True, dynamic=False, backend=self.backend, **options)

        def step(x: Tensor, labels: Tensor) -> Terms:
            with torch.no_grad():
                terms, new = run(values, x, labels, state)
                for parameter, gradient in zip(parameters, new, strict=True):
                    if gradient is None:
                        continue
                    if parameter.grad is None:
                        parameter.grad = torch.empty_like(parameter)
                    parameter.grad.copy_(gradient)
            return dict(zip(names, terms, strict=True))

        return step
