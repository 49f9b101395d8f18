"""The batch-ensemble stochastic neural network."""

from collections.abc import Collection
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from besnn.checks import check_sizes
from besnn.errors import InputError
from besnn.layers import Initialiser
from besnn.model.class_features import ClassFeatureGenerator, class_moments, squared_distances
from besnn.model.protocol import BatchEnsembled, EvidenceKind

LENGTH_SCALE = "length_scale"
FROZEN_AT_ONCE = 8
"""Classes whose features `freeze_classes` holds at a time: thousands of samples per class and member."""


class BESNN(BatchEnsembled):
    """A classifier by the distance to each class's distribution of features, from which it learns to draw.

    Class features are drawn at each call, as in the paper, until `freeze_classes` draws them once.

    Args:
        feature_extractor: Φ, mapping a batch to `[batch, feature_dim]`; a batch ensemble, or a plain network to convert.
        num_classes: C.
        feature_dim: d.
        members: N.
        noise_dim: length of the generator's noise.
        hidden_dim: width of the generator's hidden layer.
        samples: M, the number of features to draw per class.
        class_scale: see `ClassFeatureGenerator`.
        norm: BatchNorm `"shared"` by the members or one per `"member"`, for an extractor that is converted.
        init: how fast weights start; see `besnn.layers.members`.
        share: layers of a plain extractor that members share; see `besnn.layers.batch_ensemble`.
        length_scale: ℓ; features are divided by it, so the kernel is exp(−d̄ / ℓ²). Features of many dimensions start far from
            all classes, where the kernel is zero; a larger ℓ brings them within its reach.
        sphere: compare directions: scale features and class features to length 1. Squared distances are then 2 − 2 cos, at most
            4, so ℓ² should be about 0.1.
        mirror: in evaluation, give every second member mirror images, left to right; for images whose mirror images belong to
            the same class, and a network trained with them.

    >>> from besnn.model import two_moons_mlp
    >>> model = BESNN(two_moons_mlp(), num_classes=2, feature_dim=32, members=4, noise_dim=8, hidden_dim=32)
    >>> list(model.distances(torch.rand(5, 2)).shape)
    [4, 5, 2]
    """

    method: ClassVar[str] = "be-snn"
    default_score: ClassVar[str] = "tempered-entropy"
    evidence_kind: ClassVar[EvidenceKind] = "distances"
    class_mean: Tensor | None
    class_spread: Tensor | None

    def __init__(
        self,
        feature_extractor: nn.Module,
        num_classes: int,
        feature_dim: int,
        members: int = 4,
        noise_dim: int = 512,
        hidden_dim: int = 512,
        samples: int = 64,
        class_scale: float = 10.0,
        norm: str = "shared",
        init: Initialiser | None = None,
        share: Collection[str | type[nn.Module]] = (),
        length_scale: float = 1.0,
        mirror: bool = False,
        sphere: bool = False,
    ) -> None:
        super().__init__(feature_extractor, num_classes, feature_dim, members, norm, init, share, mirror)
        check_sizes(noise_dim=noise_dim, hidden_dim=hidden_dim, samples=samples)
        self.sphere = sphere
        self.generator = ClassFeatureGenerator(
            num_classes, feature_dim, members, noise_dim, hidden_dim, class_scale, init, sphere
        )
        if not 1e-3 <= length_scale <= 1e3:
            raise InputError(f"length_scale={length_scale}: pass a number from 0.001 to 1000")
        self.samples, self.length_scale = samples, length_scale
        self.register_buffer("class_mean", None)
        self.register_buffer("class_spread", None)

    def feature_rows(self, rows: Tensor) -> Tensor:
        """Return Φ of rows `[members · batch, ...]`, as `[members, batch, d]`."""
        features = super().feature_rows(rows)
        return F.normalize(features, dim=-1) if self.sphere else features

    def class_features(self, samples: int | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Draw class features E, `[members, classes, samples, d]`; M samples unless given."""
        return self.generator(self._noise(self.samples if samples is None else samples, generator))  # type: ignore[no-any-return]

    def _noise(self, samples: int, generator: torch.Generator | None) -> Tensor:
        if samples < 1:
            raise InputError(f"samples={samples}: draw at least one feature per class")
        weight = self.generator.hidden.weight
        device = weight.device if generator is None else generator.device
        noise = torch.randn(samples, self.generator.noise_dim, generator=generator, device=device, dtype=weight.dtype)
        return noise.to(weight.device)

    def evidence(self, features: Tensor) -> Tensor:
        """Return d̄ from features to the classes: frozen ones after `freeze_classes`, else newly drawn ones."""
        if self.class_mean is not None and self.class_spread is not None:
            return self._distances(features, self.class_mean, self.class_spread)
        return self.distances_to(features, self.class_features())

    def distances_to(self, features: Tensor, class_features: Tensor) -> Tensor:
        """Return d̄ from features `[members, batch, d]` to class features `[members, classes, samples, d]`."""
        return self._distances(features, *class_moments(class_features))

    def _distances(self, features: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
        if self.sphere:  # once more, for a network that scores inputs, which has the extractor only
            features = F.normalize(features, dim=-1)
        distances = squared_distances(features, mean, spread)
        return distances if self.length_scale == 1 else distances / self.length_scale**2

    def distances(self, x: Tensor) -> Tensor:
        """Return d̄_{n,c}(x), `[members, batch, classes]`."""
        return self.evidence(self.features(x))

    @property
    def frozen(self) -> bool:
        """Whether class features were drawn once by `freeze_classes`."""
        return self.class_mean is not None

    @torch.no_grad()
    def freeze_classes(self, samples: int = 4096, seed: int = 0) -> None:
        """Draw the class moments once, with the same noise on every device: distances become a function of the input."""
        noise = self._noise(samples, torch.Generator().manual_seed(seed))
        some = [slice(start, start + FROZEN_AT_ONCE) for start in range(0, self.num_classes, FROZEN_AT_ONCE)]
        means, spreads = zip(*(class_moments(self.generator(noise, classes)) for classes in some), strict=True)
        self.class_mean, self.class_spread = torch.cat(means, dim=1), torch.cat(spreads, dim=1)

    def train(self, mode: bool = True) -> "BESNN":
        """Switch to training or evaluation; training drops frozen classes, since their generator is about to change."""
        if mode:
            self.class_mean = self.class_spread = None
        return super().train(mode)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Save the length scale, unless it is 1: without it the weights mean another model."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.length_scale != 1:
            destination[prefix + LENGTH_SCALE] = torch.tensor(self.length_scale, dtype=torch.float64, device="cpu")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load frozen class moments with the state of a frozen model, and drop them with that of an unfrozen one."""
        length_scale = float(state_dict.pop(prefix + LENGTH_SCALE, 1.0))
        if length_scale != self.length_scale:
            args[-1].append(f"the weights are for length_scale={length_scale:g}, but the model has {self.length_scale:g}")
        self.class_mean = self.class_spread = None
        if any(prefix + name in state_dict for name in ("class_mean", "class_spread")):
            weight = self.generator.hidden.weight
            self.class_mean = weight.new_empty(self.members, self.num_classes, self.feature_dim)
            self.class_spread = weight.new_empty(self.members, self.num_classes)
        super()._load_from_state_dict(state_dict, prefix, *args)
