"""A trainer of any network: a line is learnt, a run goes on, a loss that is no number is said."""

import numpy as np
import pytest

from ipusim.errors import ConfigError
from ipusim.numerics import ArithmeticOptions, trainer
from ipusim.numerics.from_graph import program_of
from ipusim.numerics.trainer import Schedule, TrainingOptions, train
from ipusim.workload.layers import GraphBuilder

SLOPES = np.array([[0.5], [-0.25]], np.float32)


def batch_of(step):
    inputs = np.random.default_rng(step).uniform(-1, 1, (32, 2)).astype(np.float32)
    return inputs, inputs @ SLOPES


def run(scale=1.0, interrupt=None, **changes):
    """Train a line; return what came out, None where interrupted, and the steps asked for."""
    g = GraphBuilder("line")
    program = program_of(g.finish(g.linear("line", g.input("x", (32, 2)), 1)))
    asked = []

    def batches(step):
        if len(asked) == interrupt:
            raise KeyboardInterrupt
        asked.append(step)
        inputs, targets = batch_of(step)
        return inputs, scale * targets

    schedule = Schedule(batch=32, steps=150, learning_rate=0.05, final_learning_rate=0.0)
    options = TrainingOptions(schedule=schedule, arithmetic=ArithmeticOptions(precision="32.32"))
    try:
        return train(program, batches, options, **changes), asked
    except KeyboardInterrupt:
        return None, asked


def test_a_line_is_learnt_step_by_step():
    trained, asked = run()
    assert asked == list(range(150))
    assert trained.losses[-1] < 1e-4 < trained.losses[0]
    weights = next(values for values in trained.weights.values() if values.size == 2)
    np.testing.assert_allclose(weights.ravel(), SLOPES.ravel(), atol=0.02)


def test_a_run_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "line.npz"
    run(checkpoint=path, interrupt=60)
    resumed, asked = run(checkpoint=path)
    assert asked == list(range(60, 150))
    assert resumed.losses == run()[0].losses


def test_each_call_takes_the_steps_that_are_left(tmp_path):
    path = tmp_path / "line.npz"
    taken = [run(checkpoint=path, interrupt=60)[1] for _ in range(3)]
    assert taken == [list(range(60)), list(range(60, 120)), list(range(120, 150))]


def test_a_step_that_is_cut_short_is_not_kept(tmp_path, monkeypatch):
    path = tmp_path / "line.npz"
    whole = trainer.training_step

    def cut_short(program, state, *arguments):
        loss = whole(program, state, *arguments)
        if state.step == 3:
            raise KeyboardInterrupt
        return loss

    monkeypatch.setattr(trainer, "training_step", cut_short)
    assert run(checkpoint=path)[0] is None
    assert not path.exists()


def test_the_rate_falls_from_the_first_to_the_final():
    schedule = Schedule(batch=1, steps=5, learning_rate=0.4, final_learning_rate=0.2)
    assert [schedule.rate(step) for step in range(5)] == pytest.approx([0.4, 0.35, 0.3, 0.25, 0.2])


def test_weights_move_by_the_derivative_of_the_mean_squared_error(monkeypatch):
    """Against (L(w + h) - L(w - h)) / 2h, which is exact for a square."""
    seen = {}

    def keep(state, gradients, *_):
        seen.update(weights=state.weights, gradients=gradients)
        state.step += 1

    monkeypatch.setattr(trainer.adam, "update", keep)
    run(interrupt=1)
    name, weights = next(kept for kept in seen["weights"].items() if kept[1].size == 2)
    (bias,) = next(values for values in seen["weights"].values() if values.size == 1).ravel()
    inputs, targets = batch_of(0)

    def loss(moved):
        return np.mean((inputs @ (weights.reshape(2, 1) + moved) + bias - targets) ** 2)

    h = 0.1 * np.eye(2)[..., None]
    wanted = [(loss(axis) - loss(-axis)) / 0.2 for axis in h]
    np.testing.assert_allclose(seen["gradients"][name].ravel(), wanted, rtol=1e-4)


def test_a_loss_that_is_no_number_is_said():
    with pytest.raises(ConfigError, match="lower the learning rate 0.05"):
        run(scale=float("nan"))
