"""What a network must do to be wrapped; each thing that goes wrong in practice gets one line."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from besnn.errors import InputError, one_line
from besnn.model.wrapped import LogitsOf


def device_of(network: nn.Module) -> torch.device:
    """Return the device of a network's weights."""
    if not isinstance(network, nn.Module):
        raise InputError(f"the network is a {type(network).__name__}: pass a torch.nn.Module that returns logits")
    compiled = hasattr(network, "_orig_mod")  # by torch.compile
    if compiled or isinstance(network, torch.jit.ScriptModule):
        kind = "compiled" if compiled else "scripted"
        raise InputError(f"the network is {kind}, which hides its layers: pass the module that it was made of")
    return next((value.device for value in (*network.parameters(), *network.buffers())), torch.device("cpu"))


@torch.no_grad()
def check_network(network: nn.Module, x: Tensor, tokens: bool = False) -> tuple[nn.Module, int]:
    """Return the network, from a batch to logits alone, and the number of classes; `x` is a batch of its inputs."""
    _check_mode(network)
    network = _adapted(network, _run(network, x), tokens).eval()
    logits = _logits(network, x)
    _check_batches(network, x, logits)
    return network, logits.shape[1]


def _check_mode(network: nn.Module) -> None:
    for name, module in network.named_modules():
        if module.training and isinstance(module, _NormBase | _DropoutNd):
            raise InputError(f"layer {name!r} ({type(module).__name__}) is in training mode: call network.eval() first")


def _run(network: nn.Module, x: Tensor, problem: str = "", fix: str = "") -> Any:
    try:
        return network(x)
    except Exception as error:  # whatever a network does with inputs that it does not take
        problem = problem or f"fails on {x.dtype} inputs {list(x.shape)}"
        fix = fix or "check the shape of the inputs, and the preprocessing or size"
        raise InputError(f"the network {problem} ({one_line(error)[:200]}): {fix}") from None


def _adapted(network: nn.Module, output: Any, tokens: bool) -> nn.Module:
    if isinstance(output, Tensor):
        return network
    if isinstance(getattr(output, "logits", None), Tensor):
        pad = getattr(getattr(network, "config", None), "pad_token_id", None)
        return LogitsOf(network, pad if tokens and isinstance(pad, int) else None)
    kind = f"a {type(output).__name__}" + (f" of {len(output)} values" if isinstance(output, tuple | list | dict) else "")
    raise InputError(f"the network returns {kind}: pass a module that returns the logits alone, [batch, classes]")


def _logits(network: nn.Module, x: Tensor) -> Tensor:
    logits: Tensor = _run(network, x)
    if logits.ndim != 2 or len(logits) != len(x) or logits.shape[1] < 2 or not logits.is_floating_point():
        found = f"{logits.dtype} {list(logits.shape)} for a batch of {len(x)}"
        raise InputError(
            f"the network returns {found}: pass a module that returns logits, [batch, classes], of two classes or more"
        )
    if not bool(torch.isfinite(logits).all()):
        raise InputError("the network returns NaN or infinite logits: check its weights and the preprocessing")
    return logits


def _check_batches(network: nn.Module, x: Tensor, logits: Tensor) -> None:
    """Refuse a network whose answer for an input changes from run to run, or with the other inputs in the batch."""
    allowed = 0.01 * float((logits - logits.mean()).abs().max()) + 1e-6
    if (_run(network, x) - logits).abs().max() > allowed:
        raise InputError("the network returns different logits for the same inputs: remove what is random in it")
    few = x[: max(1, len(x) // 2)]
    alone = _run(network, few, f"takes a batch of {len(x)} but not of {len(few)}", "let it take any batch size")
    if alone.shape != logits[: len(few)].shape or (alone - logits[: len(few)]).abs().max() > allowed:
        cause = "BatchNorm in training mode, or a mean over the batch"
        raise InputError(
            f"the logits of an input change with the rest of its batch ({cause}): pass a network in evaluation mode"
        )
