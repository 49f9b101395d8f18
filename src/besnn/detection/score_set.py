"""The score a detector decides by: of evidence alone, of feature density, or of both."""

from collections.abc import Mapping
from typing import Any, Self

from torch import Tensor

from besnn.detection.block import density_from_state
from besnn.detection.combined import CombinedScore
from besnn.detection.density import Density
from besnn.detection.scores import scores_for
from besnn.errors import InputError

COMBINED = "combined"


class Scoring:
    """All the scores of one method, by name, and which of them decides.

    Args:
        evidence_kind: the method's, see `besnn.model.OODClassifier`.
        name: the score that decides.
        densities: fitted densities by name; see `besnn.detection.density`.
        combined: a combination of an evidence score with densities.
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
        if name not in self.names:
            raise InputError(f"score {name!r} is not one of this detector's: use one of {', '.join(self.names)}")
        self.name = name

    @property
    def names(self) -> list[str]:
        """The scores that can be had."""
        return [*self.evidence_scores, *self.densities, *([COMBINED] if self.combined is not None else [])]

    def score(self, evidence: Tensor, features: Tensor, name: str | None = None) -> Tensor:
        """The score that decides, or a named one, `[batch]`, from evidence `[members, batch, classes]` and features."""
        name = self.name if name is None else name
        if name in self.evidence_scores:
            return self.evidence_scores[name](evidence)
        if name == COMBINED and self.combined is not None:
            return self.combined.score({part: self.score(evidence, features, part) for part in self.combined.state()})
        if name not in self.densities:
            raise InputError(f"score {name!r} is not one of this detector's: use one of {', '.join(self.names)}")
        return self.densities[name].score(features)

    def keep(self, name: str) -> "Scoring":
        """The same scoring deciding by `name`, without the densities that this one does not need."""
        parts = set(self.combined.state()) if name == COMBINED and self.combined is not None else {name}
        densities = {part: density for part, density in self.densities.items() if part in parts}
        return Scoring(self.evidence_kind, name, densities, self.combined if name == COMBINED else None)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able settings that `from_state` needs."""
        tensors = {f"density/{name}/{key}": t for name, density in self.densities.items() for key, t in density.state().items()}
        if self.combined is not None:
            tensors |= {f"combined/{name}": reference for name, reference in self.combined.state().items()}
        return tensors, {"name": self.name, "densities": list(self.densities)}

    @classmethod
    def from_state(cls, evidence_kind: str, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        """The scoring that `state` came from."""

        def under(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

        densities = {name: density_from_state(name, under(f"density/{name}/")) for name in settings["densities"]}
        reference = under("combined/")
        return cls(evidence_kind, settings["name"], densities, CombinedScore.from_state(reference) if reference else None)
