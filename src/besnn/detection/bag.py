"""A bag of scores in constant memory: counts on a fixed grid, and exact p-values against them."""

import numpy as np
from numpy.typing import NDArray

CHUNK = 128  # scores that are compared with each other at once


class ScoreBag:
    """A growing bag of scores, each known only by its cell in a fixed grid.

    Args:
        edges: `[cells − 1]`, rising.

    Attributes:
        counts: `[cells]`, how many scores each cell has seen.

    Example:
        >>> bag = ScoreBag(np.array([0.5]))
        >>> bag.add(np.array([0.1, 0.2, 0.9]))
        >>> bag.p_values(np.array([0.7, 0.3]), ties=np.array([0.5, 0.5]))
        array([0.25, 0.7 ])
    """

    def __init__(self, edges: NDArray[np.float64]) -> None:
        self.edges = edges
        self.counts = np.zeros(len(edges) + 1, dtype=np.int64)

    def add(self, scores: NDArray[np.float64]) -> None:
        """Puts scores `[n]` into the bag."""
        self.counts += np.bincount(self._cells(scores), minlength=len(self.counts))

    def p_values(self, scores: NDArray[np.float64], ties: NDArray[np.float64]) -> NDArray[np.float64]:
        """Smoothed p-values (#{higher} + u #{equal, itself included}) / #{all}, each score joining the bag in turn.

        Args:
            scores: `[n]`, in their order.
            ties: u `[n]`, independent and uniform in (0, 1].

        Returns:
            `[n]`: independent and uniform if all scores, those in the bag included, are exchangeable.
        """
        cells = self._cells(scores)
        chunks = [slice(start, start + CHUNK) for start in range(0, len(cells), CHUNK)]
        return np.concatenate([np.empty(0), *(self._chunk_p_values(cells[part], ties[part]) for part in chunks)])

    def _chunk_p_values(self, cells: NDArray[np.int64], ties: NDArray[np.float64]) -> NDArray[np.float64]:
        higher = self.counts.sum() - self.counts.cumsum()
        earlier = np.tri(len(cells), k=-1, dtype=bool)
        higher_before = higher[cells] + ((cells > cells[:, None]) & earlier).sum(axis=1)
        equal_before = self.counts[cells] + ((cells == cells[:, None]) & earlier).sum(axis=1)
        size = self.counts.sum() + np.arange(1, len(cells) + 1)
        self.counts += np.bincount(cells, minlength=len(self.counts))
        p_values: NDArray[np.float64] = (higher_before + ties * (equal_before + 1)) / size
        return p_values

    def _cells(self, scores: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.searchsorted(self.edges, scores, side="right")
