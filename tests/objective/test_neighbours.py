import numpy as np
import pytest
import torch

from besnn.objective.neighbours import nearest_neighbours, offset_to


@pytest.mark.parametrize("norm", [2.0, np.inf])
def test_neighbours_are_those_of_a_sort_by_hand(norm):
    generator = torch.Generator().manual_seed(0)
    points, groups = torch.randn(2, 20, 3, generator=generator), torch.randint(3, (20,), generator=generator)
    index, available = nearest_neighbours(points, groups, count=4, norm=norm)
    for leading in range(2):
        for i in range(20):
            others = [j for j in range(20) if j != i and groups[j] == groups[i]]
            distance = {j: np.linalg.norm((points[leading, j] - points[leading, i]).numpy(), ord=norm) for j in others}
            expected = sorted(others, key=distance.__getitem__)[:4]
            assert available[leading, i] == len(expected)
            assert index[leading, i].tolist() == expected + [i] * (4 - len(expected))


def test_near_duplicates_far_from_the_origin_are_told_apart():
    points = 1000 + torch.tensor([[0.0], [0.003], [0.001], [0.01]])
    index, _ = nearest_neighbours(points, torch.zeros(4, dtype=torch.int64), count=3, norm=2.0)
    assert index[0].tolist() == [2, 1, 3]


def test_groups_may_differ_between_leading_dimensions():
    points = torch.tensor([[0.0], [1.0], [3.0]]).expand(2, 3, 1)
    index, available = nearest_neighbours(points, torch.tensor([[0, 0, 0], [0, 1, 0]]), count=1, norm=2.0)
    assert index[:, 0, 0].tolist() == [1, 2]
    assert available.tolist() == [[1, 1, 1], [1, 0, 1]]


def test_offset_carries_the_gradient_of_both_ends():
    points = torch.tensor([[0.0], [1.0], [5.0]], requires_grad=True)
    offset_to(points, torch.tensor([2, 2, 0]))[0].sum().backward()
    assert points.grad.flatten().tolist() == [-1, 0, 1]
