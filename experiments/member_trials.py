"""Trials of what might tell members apart: fast weights of rank 2, and more members trained than kept. No recipe has them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from besnn.detector import Detector
from besnn.layers.layer import BatchEnsembleLayer, fast_parameters
from besnn.recipe.build import build_method
from besnn.training import parse_recipe, schedule
from besnn.training.choose_score import fit_scoring
from besnn.training.fit import Fitted
from experiments.detection import accuracy_of
from experiments.hunt import HUNT, hunt_runs, measure_hunt
from experiments.runner import execute
from experiments.runs import Measured, Run, Workspace, is_recorded

BASE = "D"
RANK_2 = "D, fast weights of rank 2"
BEST_4_OF_16 = "D, the best 4 of 16 members"


def member_runs(overrides: Sequence[str] = ()) -> list[Run]:
    """Return the runs of both trials, as changes to the hunt's setting D, with the seeds of that setting.

    >>> {run.variant: run.recipe.method.members for run in member_runs()}
    {'D, fast weights of rank 2': 4, 'D, the best 4 of 16 members': 16}
    """
    bases = [run for run in hunt_runs("fashion-mnist") if run.variant == BASE]
    return [_trial(run, RANK_2, overrides) for run in bases] + [
        _trial(run, BEST_4_OF_16, [*overrides, "method.members=16", f"training.batch_rows={16 * run.recipe.batch_size}"])
        for run in bases  # each of 16 members sees as many inputs per step as one of 4 does
    ]


def _trial(run: Run, variant: str, changes: Sequence[str]) -> Run:
    return replace(run, variant=variant, recipe=parse_recipe(run.recipe.model_dump(mode="json"), changes))


def run_trials(runs: Iterable[Run], workspace: Workspace, say: Callable[[str], None] = print) -> None:
    """Execute the trials that have no record yet, one after the other."""
    for run in runs:
        if not is_recorded(run, workspace):
            with rank_two() if run.variant == RANK_2 else nullcontext():
                fields = execute(run, measure_hunt if run.variant == RANK_2 else measure_best, workspace)
            say(f"{HUNT}/{run.name}: done in {fields['seconds']:.0f} s")


def measure_best(fitted: Fitted, run: Run, workspace: Workspace) -> Measured:
    """Measure the four members that are most accurate on the validation split, as an ensemble of their own."""
    detector = best_members(fitted, 4)
    fit_scoring(detector, run.recipe.score, fitted.split.training, fitted.split.validation)
    validation = fitted.split.validation
    assert validation is not None
    history = [*fitted.history[:-1], fitted.history[-1] | {"validation_accuracy": accuracy_of(detector, validation)}]
    return measure_hunt(replace(fitted, detector=detector, history=history), run, workspace)


def best_members(fitted: Fitted, keep: int) -> Detector:
    """Return a detector with only the members of the highest validation accuracy."""
    detector, validation = fitted.detector, fitted.split.validation
    assert validation is not None
    model, recipe = detector.model, detector.recipe
    assert recipe is not None
    evidence = torch.cat([rows.float().cpu() for rows, _ in detector.outputs(validation.inputs)], dim=1)
    labels = torch.as_tensor(validation.labels)
    right = torch.stack([(model.log_probabilities(member[None]).argmax(-1) == labels).sum() for member in evidence])
    chosen = right.argsort(descending=True)[:keep].sort().values
    recipe = recipe.model_copy(update={"method": recipe.method.model_copy(update={"members": keep})})
    smaller, _ = build_method(recipe, detector.preprocessing.input_shape, len(detector.class_names))
    smaller.load_state_dict(_of_members(model, smaller, chosen))
    smaller.eval()
    smaller.freeze_classes()
    return Detector(smaller, detector.preprocessing, detector.class_names, recipe, provenance=dict(detector.provenance)).to(
        detector.device
    )


def _of_members(model: nn.Module, smaller: nn.Module, chosen: Tensor) -> dict[str, Any]:
    """Return the state of a smaller ensemble: tensors with a member axis keep the chosen members, the others are shared."""
    members, keep = model.members, len(chosen)
    wanted = smaller.state_dict()
    state = {name: value for name, value in model.state_dict().items() if name in wanted}
    for name, value in state.items():
        if value.shape != wanted[name].shape:
            state[name] = value.unflatten(0, (members, -1))[chosen.to(value.device)].reshape(wanted[name].shape)
    assert all(value.numel() % keep == 0 for value in state.values() if value.ndim)
    return state


@contextmanager
def rank_two() -> Iterator[None]:
    """Give converted layers the weights W ∘ (r_n s_nᵀ + r'_n s'_nᵀ) of rank 2, of the same variance as those of rank 1."""
    convert, plain_forward, plain_weights = (
        BatchEnsembleLayer.from_plain.__func__,  # type: ignore[attr-defined]
        BatchEnsembleLayer.forward,
        BatchEnsembleLayer.member_weights,
    )

    def from_plain(cls: type, layer: nn.Module, members: int, init: Any, batch_dim: int = 0) -> nn.Module:
        made = convert(cls, layer, members, init, batch_dim)
        made.second_r = nn.Parameter(init(torch.empty_like(made.r)))
        made.second_s = nn.Parameter(init(torch.empty_like(made.s)) / 2**0.5)
        made.s.data /= 2**0.5
        return made  # type: ignore[no-any-return]

    def forward(self: Any, input: Tensor) -> Tensor:
        if not hasattr(self, "second_r"):
            return plain_forward(self, input)
        x = self._by_member(input)
        y: Any = 0 if self.bias is None else self._broadcast(self.bias, self._by_member(self.shared(input)))
        for r, s in ((self.r, self.s), (self.second_r, self.second_s)):
            one = self._by_member(self.shared(self._join(x * self._broadcast(r, x))))
            y = y + one * self._broadcast(s, one)
        return self._join(y)  # type: ignore[no-any-return]

    def member_weights(self: Any, s: Tensor | None = None) -> Tensor:
        first = plain_weights(self, s)
        if not hasattr(self, "second_r"):
            return first
        scale = 1 if s is None else s / self.s  # a BatchNorm's, folded into s
        with patch.object(self, "r", self.second_r):
            return first + plain_weights(self, self.second_s * scale)

    def fast(module: nn.Module) -> Iterator[nn.Parameter]:
        yield from fast_parameters(module)
        yield from (parameter for name, parameter in module.named_parameters() if "second_" in name)

    with (
        patch.object(BatchEnsembleLayer, "from_plain", classmethod(from_plain)),
        patch.object(BatchEnsembleLayer, "forward", forward),
        patch.object(BatchEnsembleLayer, "member_weights", member_weights),
        patch.object(schedule, "fast_parameters", fast),
    ):
        yield
