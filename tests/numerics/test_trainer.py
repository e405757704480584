"""A trainer of any network: a line is learnt, a run goes on, a loss that is no number is said."""

import numpy as np
import pytest

from ipusim.errors import ConfigError
from ipusim.numerics import ArithmeticOptions
from ipusim.numerics.from_graph import program_of
from ipusim.numerics.trainer import Schedule, TrainingOptions, train
from ipusim.workload.layers import GraphBuilder

SLOPES = np.array([[0.5], [-0.25]], np.float32)


def run(scale=1.0, **changes):
    g = GraphBuilder("line")
    program = program_of(g.finish(g.linear("line", g.input("x", (32, 2)), 1)))
    asked = []

    def batches(step):
        asked.append(step)
        inputs = np.random.default_rng(step).uniform(-1, 1, (32, 2)).astype(np.float32)
        return inputs, scale * (inputs @ SLOPES)

    schedule = Schedule(batch=32, steps=150, learning_rate=0.05, final_learning_rate=0.0)
    options = TrainingOptions(schedule=schedule, arithmetic=ArithmeticOptions(precision="32.32"))
    return train(program, batches, options, **changes), asked


def test_a_line_is_learnt_step_by_step():
    trained, asked = run()
    assert asked == list(range(150))
    assert trained.losses[-1] < 1e-4 < trained.losses[0]
    weights = next(values for values in trained.weights.values() if values.size == 2)
    np.testing.assert_allclose(weights.ravel(), SLOPES.ravel(), atol=0.02)


def test_a_run_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "line.npz"
    first, _ = run(checkpoint=path, stop_after=60)
    resumed, asked = run(checkpoint=path)
    assert len(first.losses) == 60
    assert asked == list(range(60, 150))
    assert resumed.losses == run()[0].losses


def test_a_loss_that_is_no_number_is_said():
    with pytest.raises(ConfigError, match="lower the learning rate 0.05"):
        run(scale=float("nan"))
