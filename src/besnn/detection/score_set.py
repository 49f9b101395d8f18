"""The scores of a detector: those of its evidence, its feature densities and their combination, and which one decides."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from torch import Tensor

from besnn.detection.combined import CombinedScore
from besnn.detection.densities import Density, density_from_state
from besnn.detection.scores import scores_for
from besnn.errors import InputError

COMBINED = "combined"


class ScoreSet:
    """The scores of one detector by name, and which of them decides. `evidence_kind` is that of the detector's method.

    >>> import torch
    >>> scores = ScoreSet("distances", "smallest-distance")
    >>> scores.score(torch.tensor([[[0.0, 9.0], [4.0, 9.0]]]), features=torch.zeros(1, 2, 8))
    tensor([0., 4.])
    """

    def __init__(
        self,
        evidence_kind: str,
        name: str,
        densities: Mapping[str, Density] | None = None,
        combined: CombinedScore | None = None,
    ) -> None:
        self.evidence_kind, self.densities, self.combined = evidence_kind, dict(densities or {}), combined
        self.evidence_scores = scores_for(evidence_kind)
        self.name = self._checked(name)

    @property
    def names(self) -> list[str]:
        """The available scores."""
        return [*self.evidence_scores, *self.densities, *([COMBINED] if self.combined is not None else [])]

    def score(self, evidence: Tensor, features: Tensor, name: str | None = None) -> Tensor:
        """Score evidence `[members, batch, classes]` and features `[members, batch, d]` as `[batch]`, by one of `names`."""
        name = self._checked(self.name if name is None else name)
        if name in self.evidence_scores:
            return self.evidence_scores[name](evidence)
        if name in self.densities:
            return self.densities[name].score(features)
        return self._combined(evidence, features, {})

    def scores(self, evidence: Tensor, features: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Compute several scores as `score` does, `{name: [batch]}`; `combined` shares its parts with the others."""
        found = {name: self.score(evidence, features, name) for name in names if name != COMBINED}
        if COMBINED in names:
            self._checked(COMBINED)
            found[COMBINED] = self._combined(evidence, features, found)
        return found

    def _combined(self, evidence: Tensor, features: Tensor, found: Mapping[str, Tensor]) -> Tensor:
        """Combine the parts, of which some may have been found already; where a part does not count, it may be inexact."""
        assert self.combined is not None
        parts = {}
        for part, tail in self.combined.tails.items():
            if part in found:
                parts[part] = found[part]
            elif tail.beyond and part in self.densities:
                parts[part] = self.densities[part].score_beyond(features, tail.unnoticed)
            else:
                parts[part] = self.score(evidence, features, part)
        return self.combined.score(parts)

    def keep(self, name: str) -> "ScoreSet":
        """Return the same scores deciding by `name`, without the densities that this score does not need."""
        combined = self.combined if name == COMBINED else None
        parts = set(combined.tails) if combined is not None else {name}
        densities = {part: density for part, density in self.densities.items() if part in parts}
        return ScoreSet(self.evidence_kind, name, densities, combined)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and JSON-able settings that `from_state` needs."""
        tensors = {f"density/{name}/{key}": t for name, density in self.densities.items() for key, t in density.state().items()}
        if self.combined is not None:
            tensors |= {f"combined/{name}": reference for name, reference in self.combined.state().items()}
        far = self.combined.far if self.combined is not None else {}
        return tensors, {"name": self.name, "densities": list(self.densities)} | ({"far": far} if far else {})

    @classmethod
    def from_state(cls, evidence_kind: str, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        """Restore the scores that `state` describes."""

        def under(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

        densities = {name: density_from_state(name, under(f"density/{name}/")) for name in settings["densities"]}
        reference = under("combined/")
        combined = CombinedScore(reference, settings.get("far")) if reference else None
        return cls(evidence_kind, settings["name"], densities, combined)

    def _checked(self, name: str) -> str:
        if name not in self.names:
            raise InputError(f"this detector has no score {name!r}: use one of {', '.join(self.names)}")
        return name
