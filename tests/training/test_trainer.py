import copy
import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss

from besnn.data import two_moons
from besnn.errors import BesnnError, InputError
from besnn.model import Preprocessing
from besnn.training import Trainer, build_method, make_fabric
from besnn.training.batches import ArraySource
from besnn.training.progress import Reporter
from besnn.training.trainer import derive_seed, epoch_order


class Watching(Reporter):
    """Keeps the weights after every step; the fixture `train` sets the model."""

    def __init__(self):
        self.model, self.weights = None, []

    def step(self):
        self.weights.append(copy.deepcopy(self.model.state_dict()))


def plain_steps(*overrides):
    """Settings of plain SGD: full batches and a constant rate."""
    simple = ["training.batch_size=1000", "training.schedule.name=constant"]
    simple += ["training.optimiser={learning_rate: 0.1, momentum: 0, weight_decay: 0, clip: 0}"]
    return [*simple, *overrides]


def test_class_features_are_drawn_anew_at_every_step(train, tiny_recipe, moons):
    still = ["training.optimiser.learning_rate=1e-20", "method.entropy_weight=0", "method.gradient_weight=0"]
    history = train(tiny_recipe(*plain_steps(), *still), moons).history  # the same batch and the same weights every time
    assert len({row["classification"] for row in history}) == len(history) == 3


def test_it_equals_a_loop_written_by_hand(train, tiny_recipe, moons):
    recipe = tiny_recipe("method=softmax", "training.optimiser={learning_rate: 0.1, weight_decay: 0.01, clip: 0.5}")
    trained = train(recipe, moons)
    torch.manual_seed(0)
    model, _ = build_method(recipe, (2,), 2)
    x = torch.from_numpy((moons.inputs - moons.inputs.mean(0)) / moons.inputs.std(0))
    labels = torch.from_numpy(moons.labels)
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    groups = [
        {"params": [layer.weight for layer in layers], "weight_decay": 0.01},
        {"params": [layer.bias for layer in layers]},
    ]
    optimiser = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 30)
    for epoch in range(3):
        for rows in epoch_order(160, seed=0, epoch=epoch).split(16):
            optimiser.zero_grad()
            logits = model.head(model.feature_extractor(x[rows]))
            torch.nn.functional.cross_entropy(logits, labels[rows]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimiser.step()
            schedule.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trained.weights[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "batch", "steps"),
    [
        (["training.batch_size=1000"], 160, 1),  # never larger than the data
        (["training.batch_size=1000", "method.members=3", "method.own_inputs=true"], 159, 1),  # a multiple of the members
        (["training.batch_size=50"], 50, 3),  # an incomplete batch is left out
    ],
)
def test_batches_and_steps_of_160_inputs(settings, batch, steps, train, tiny_recipe, moons):
    trainer = train(tiny_recipe("training.epochs=2", *settings), moons).trainer
    assert (trainer.batch_size, trainer.total_steps) == (batch, 2 * steps)


@pytest.mark.parametrize(("least", "epochs"), [(3, 2), (100, None)])
def test_small_data_are_trained_for_some_steps(least, epochs, train, tiny_recipe, moons):
    trainer = train(tiny_recipe("training.epochs=2", f"training.least_steps={least}"), moons).trainer
    expected = -(-least // trainer.steps_per_epoch) if epochs is None else epochs
    assert trainer.total_steps == expected * trainer.steps_per_epoch
    assert trainer.progress.step == trainer.total_steps


def test_fewer_inputs_than_members_that_share_them(train, tiny_recipe, moons):
    with pytest.raises(InputError, match=r"cannot split 160 inputs among 161 members: set method.own_inputs=false") as caught:
        train(tiny_recipe("method.members=161", "method.own_inputs=true"), moons)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("own_inputs", ["false", "true"])
def test_history_has_one_row_per_epoch_with_all_terms(own_inputs, train, tiny_recipe, moons):
    recipe = tiny_recipe("training.optimiser.learning_rate=0.02", f"method.own_inputs={own_inputs}")
    history = train(recipe, moons, validation=two_moons(40, seed=1)).history
    assert [row["epoch"] for row in history] == [1, 2, 3]
    for epoch, row in enumerate(history):
        assert row["loss"] == pytest.approx(row["classification"] + row["entropy"] + row["gradient"])
        last_step = (10 * epoch + 9) / 30
        assert row["learning_rate"] == pytest.approx(0.01 * (1 + math.cos(math.pi * last_step)))
        assert 0 <= row["validation_accuracy"] <= 1
    assert history[-1]["loss"] < history[0]["loss"]


def test_validation_against_scikit_learn(train, tiny_recipe, moons):
    held_out = two_moons(300, seed=1)
    trained = train(tiny_recipe("training.epochs=2"), moons, validation=held_out)
    trained.model.freeze_classes(samples=256, seed=0)
    preprocessing = Preprocessing.fit(torch.from_numpy(moons.inputs))
    with torch.no_grad():
        evidence = trained.model(preprocessing(torch.from_numpy(held_out.inputs)))
    kernels = np.exp(-evidence.double().numpy()).mean(axis=0)
    probabilities = kernels / kernels.sum(axis=1, keepdims=True)
    last = trained.history[-1]
    assert last["validation_loss"] == pytest.approx(log_loss(held_out.labels, probabilities), rel=1e-4)
    assert last["validation_accuracy"] == pytest.approx(accuracy_score(held_out.labels, probabilities.argmax(axis=1)))


def test_early_stopping_keeps_the_best_weights(train, tiny_recipe, moons):
    held_out = two_moons(40, seed=1)
    # a rate so high that validation gets worse now and then
    recipe = tiny_recipe("training.patience=2", "training.epochs=40", "training.optimiser.learning_rate=0.5")
    trained = train(recipe, moons, validation=held_out)
    losses = [row["validation_loss"] for row in trained.history]
    best = int(np.argmin(losses))
    assert len(losses) == best + 1 + 2 < 40
    assert trained.validate(held_out)["loss"] == losses[best]


def test_patience_needs_validation(train, tiny_recipe, moons):
    with pytest.raises(InputError, match=r"training.patience needs validation data: set data.validation above 0"):
        train(tiny_recipe("training.patience=2"), moons)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_averaging_ends_with_the_mean_of_the_weights_on_the_way(share, train, tiny_recipe, stripes):
    watching = Watching()
    recipe = tiny_recipe(f"training.average_from={share}", "backbone.hidden=[4]")
    trained = train(recipe, stripes, reporter=watching)
    since = watching.weights[int(share * len(watching.weights)) :]
    for name, value in trained.weights.items():
        if value.is_floating_point():
            expected = torch.stack([weights[name].double() for weights in since]).mean(0)
            torch.testing.assert_close(value.double(), expected, rtol=1e-4, atol=1e-6)


def test_mixed_precision_trains_weights_in_float32(train, tiny_recipe, moons):
    reference = train(tiny_recipe(), moons)
    trained = train(tiny_recipe("training.precision=bf16"), moons)
    assert {value.dtype for value in trained.weights.values()} == {torch.float32}
    assert trained.history[-1]["loss"] == pytest.approx(reference.history[-1]["loss"], rel=0.1)
    assert trained.history != reference.history


def test_terms_come_in_with_their_ramps(train, tiny_recipe, moons):
    history = train(tiny_recipe("training.ramps={entropy: {start: 0.4}, gradient: {start: 0.9}}"), moons).history
    assert [sorted({"entropy", "gradient"} & set(row)) for row in history] == [[], ["entropy"], ["entropy", "gradient"]]


def test_an_objective_without_active_terms_is_refused(train, tiny_recipe, moons):
    with pytest.raises(InputError, match=r"no term of the objective.*training\.ramps"):
        train(tiny_recipe("method=softmax", "training.ramps={classification: {start: 0.5}}"), moons)


def test_divergence_is_reported_in_one_line(train, tiny_recipe, moons):
    with pytest.raises(BesnnError, match=r"diverged in epoch 1 .*lower training.optimiser.learning_rate") as caught:
        train(tiny_recipe(*plain_steps("training.optimiser.learning_rate=1e38")), moons)
    assert "\n" not in str(caught.value)


def test_weights_that_train_in_channels_last_memory_end_contiguous(train, tiny_recipe, stripes):
    recipe = tiny_recipe("backbone={hidden: [4, 6], feature_dim: 5}", "training.epochs=1", "training.optimiser.momentum=0")
    expected = train(recipe, stripes).weights
    fabric = make_fabric("fp32", accelerator="cpu")
    source = ArraySource(stripes, fabric.device)
    torch.manual_seed(0)
    model, objective = build_method(recipe, (1, 8, 8), 2)
    model.to(memory_format=torch.channels_last)
    assert not all(value.is_contiguous() for value in model.state_dict().values())
    Trainer(recipe, model, objective, Preprocessing.fit(source.inputs), fabric).fit(source)
    for name, value in model.state_dict().items():
        assert value.is_contiguous()
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-4)


def test_seeds_differ_between_runs_draws_and_places():
    seeds = [derive_seed(*words) for words in itertools.product([0, 1, 2, 3, 2**62], range(4), range(50), range(2))]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_an_epoch_visits_everything_once_and_every_epoch_in_another_order():
    orders = [epoch_order(40, seed, epoch) for seed in range(2) for epoch in range(3)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(40))
    assert len({tuple(order.tolist()) for order in orders}) == 6


def test_weights_decide_how_often_an_input_is_drawn():
    weights = torch.tensor([0.5, 1.0, 3.5, 1.0])
    orders = [epoch_order(4, seed=0, epoch=epoch, weights=weights) for epoch in range(3000)]
    counts = torch.stack([order.bincount(minlength=4) for order in orders]).double()
    expected = 4 * weights / weights.sum()
    torch.testing.assert_close(counts.mean(0), expected.double(), atol=0.03, rtol=0)
    assert bool(((counts >= expected.floor()) & (counts <= expected.ceil())).all())  # rounded up or down, never more
    assert epoch_order(5, 0, 0, torch.ones(5)).sort().values.tolist() == [0, 1, 2, 3, 4]
