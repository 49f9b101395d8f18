import itertools

import torch

from besnn.training.seeds import Draw, draw_seed, epoch_order, own_randomness


def test_seeds_differ_between_runs_draws_and_places():
    places = itertools.product(range(5), Draw, range(50), range(2))
    seeds = [draw_seed(seed, draw, *place) for seed, draw, *place in places]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_are_a_function_of_their_place():
    assert draw_seed(3, Draw.OBJECTIVE, 7) == draw_seed(3, Draw.OBJECTIVE, 7)
    torch.manual_seed(draw_seed(2**62, Draw.OBJECTIVE, 7))  # a seed of any size makes one that torch takes


def test_an_epoch_visits_everything_once_and_every_epoch_in_another_order():
    orders = [epoch_order(40, seed, epoch) for seed in range(2) for epoch in range(3)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(40))
    assert len({tuple(order.tolist()) for order in orders}) == 6


def test_the_callers_random_numbers_are_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with own_randomness(torch.device("cpu")):
        torch.manual_seed(0)
        torch.rand(7)
    assert torch.equal(torch.rand(3), expected)
