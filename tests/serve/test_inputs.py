import pytest

from besnn.errors import InputError
from besnn.serve import Settings
from besnn.serve.bodies import Budget
from besnn.serve.inputs import InputReader
from besnn.serve.problems import Problem


@pytest.mark.parametrize("shape", [(2, 8, 8), (3, 4), (1, 2, 3, 4)])
def test_models_of_other_inputs_are_refused(shape: tuple[int, ...]):
    with pytest.raises(InputError, match="cannot serve"):
        InputReader(shape, Settings())


def test_all_shares_of_a_budget_end_and_one_that_has_ended_takes_nothing():
    budget = Budget(100)
    with budget.share() as take, budget.share() as other:
        take(60)
        with pytest.raises(Problem, match="no memory left"):
            other(41)
        other(40)
    with pytest.raises(TimeoutError):  # of a thread that goes on after the deadline: nobody would give it back
        take(1)
    with budget.share() as take:
        take(100)
