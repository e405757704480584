"""BraggNN from pixels to centres: data, preparation, network, training, checkpoints."""

import json
from dataclasses import replace

import naive_braggnn
import numba
import numpy as np
import pytest

from ipusim import numerics
from ipusim.compiler.program_cache import keep_programs
from ipusim.errors import ConfigError, DataError, UnknownNameError
from ipusim.numerics import trainer
from ipusim.numerics.adam import load_checkpoint
from ipusim.numerics.arithmetic import ArithmeticOptions
from ipusim.numerics.from_graph import program_of
from ipusim.numerics.kernels import threads
from ipusim.numerics.program import initial_weights
from ipusim.numerics.trainer import TrainingOptions
from ipusim.study.argonne import training as shown
from ipusim.study.argonne.braggnn import training
from ipusim.study.argonne.braggnn.patches import prepare_patches, random_shifts
from ipusim.study.argonne.braggnn.peaks import FULL_SCALE, PeakOptions, simulate_peaks
from ipusim.study.argonne.braggnn.pseudo_voigt import fit_centres
from ipusim.study.argonne.braggnn.training import Schedule, train_bragg
from ipusim.workload import zoo

FP32 = ArithmeticOptions(precision="32.32")
TINY = Schedule(
    train_peaks=40,
    test_peaks=20,
    batch=16,
    steps=5,
    learning_rate=2e-3,
    final_learning_rate=1e-3,
)


@pytest.fixture(scope="module")
def peaks():
    return simulate_peaks(300, seed=4)


# -- data --------------------------------------------------------------------------------


def test_peaks_are_seeded_and_centred(peaks):
    again, other = simulate_peaks(300, seed=4), simulate_peaks(300, seed=5)
    np.testing.assert_array_equal(peaks.crops, again.crops)
    assert (peaks.crops != other.crops).any()
    assert peaks.crops.shape == (300, 15, 15)
    assert (np.abs(peaks.centres - 7) < 1).all()
    # a longer draw begins with the shorter one
    np.testing.assert_array_equal(simulate_peaks(310, seed=4).crops[:300], peaks.crops)


def test_pixels_are_counts_with_neighbours_and_saturation():
    bright = PeakOptions(height=(30_000.0, 0.1), half_width=(1.5, 2.0))
    peaks = simulate_peaks(400, 0, bright)
    assert peaks.saturated.all()
    assert peaks.crops.max() <= FULL_SCALE
    assert np.array_equal(peaks.crops, np.rint(peaks.crops))
    assert (peaks.crops >= 0).all()
    assert 0.15 < peaks.neighbours.mean() < 0.35


def test_a_fit_finds_clean_peaks():
    clean = PeakOptions(height=(10_000.0, 0.0), neighbour_share=0.0, read_noise=0.0)
    peaks = simulate_peaks(20, 1, clean)
    patches, targets = prepare_patches(peaks.crops, peaks.centres)
    assert np.abs(fit_centres(patches) - targets * 11).max() < 0.1


def test_patches_are_scaled_shifted_and_labelled(peaks):
    shifts = random_shifts(300, np.random.default_rng(0))
    assert set(np.unique(shifts)) == {-1, 0, 1}
    patches, targets = prepare_patches(peaks.crops, peaks.centres, shifts, clean=False)
    plain, plain_targets = prepare_patches(peaks.crops, peaks.centres, clean=False)
    assert patches.min() == 0 and patches.max() == 1
    # a patch moved right shows its peak further left
    np.testing.assert_allclose(targets, plain_targets - shifts / 11, atol=1e-6)
    right = np.flatnonzero((shifts == [1, 0]).all(axis=1))[0]
    window = peaks.crops[right, 2:13, 3:14]
    scaled = (window - window.min()) / (window.max() - window.min())
    np.testing.assert_allclose(patches[right, 0], scaled, atol=1e-7)
    assert plain.dtype == targets.dtype == np.float32


def test_only_the_component_of_the_peak_is_kept():
    crop = np.zeros((1, 15, 15), np.float32)
    crop[0, 6:9, 6:9] = 5
    crop[0, 9, 9] = 2  # touches by a corner
    crop[0, 3:5, 11:13] = 50  # brighter, elsewhere
    centre = np.array([[7.2, 6.9]])
    patches, _ = prepare_patches(crop, centre)
    expected = np.zeros((11, 11))
    expected[4:7, 4:7] = 1
    expected[7, 7] = np.float32(0.4)
    np.testing.assert_array_equal(patches[0, 0], expected.astype(np.float32))


def test_bad_images_are_refused(peaks):
    broken = peaks.crops.copy()
    broken[7, 3, 3] = np.nan
    with pytest.raises(DataError, match=r"1 of 300 images hold NaN.*number 7"):
        prepare_patches(broken, peaks.centres)
    with pytest.raises(DataError, match="holds no peaks"):
        prepare_patches(peaks.crops[:0], peaks.centres[:0])
    with pytest.raises(DataError, match=r"\(300, 11, 11\)"):
        prepare_patches(peaks.crops[:, 2:13, 2:13], peaks.centres)
    with pytest.raises(DataError, match=r"centres have shape \(7, 2\), which must be \(300, 2\)"):
        prepare_patches(peaks.crops, peaks.centres[:7])
    with pytest.raises(ConfigError, match="Only 0 of 3 peaks"):
        simulate_peaks(3, 0, PeakOptions(height=(1e-3, 0.0), background=(0.0, 0.0)))
    with pytest.raises(ConfigError, match="must be at least 1"):
        simulate_peaks(0, 1)


# -- the network -------------------------------------------------------------------------


def test_braggnn_is_the_published_network():
    graph = zoo.load("BraggNN").graph(1)
    assert graph.parameters == 33_172
    assert graph.macs == 2_094_252
    assert [graph.tensors[name].shape for name in graph.outputs] == [(1, 2)]


@pytest.fixture(scope="module")
def step():
    """Patches, targets and weights with biases that matter."""
    generator = np.random.default_rng(2)
    patches = generator.uniform(0, 1, (24, 1, 11, 11)).astype(np.float32)
    targets = generator.uniform(0.4, 0.6, (24, 2)).astype(np.float32)
    weights = initial_weights(program_of(zoo.load("braggnn").graph(24, "32.32")), 3)
    for name, values in weights.items():
        if name.endswith("bias"):
            weights[name] = generator.normal(0, 0.05, values.shape).astype(np.float32)
    return patches, targets, weights


def oracle(step):
    """Predictions and gradients by plain numpy.

    In double precision, so that how a processor's BLAS adds up tells in no digit compared.
    """
    patches, targets = (array.astype(np.float64) for array in step[:2])
    weights = {name: values.astype(np.float64) for name, values in step[2].items()}
    _, gradients = naive_braggnn.training_step(patches, targets, weights)
    return naive_braggnn.predict(patches, weights).astype(np.float32), gradients


def test_single_precision_step_is_numpys(step):
    patches, targets, weights = step
    predicted, expected = oracle(step)
    result = numerics.run("braggnn", patches, weights=weights, precision="32.32")
    np.testing.assert_allclose(next(iter(result.values())), predicted, atol=2e-6)
    incoming = (predicted - targets) * np.float32(2 / targets.size)
    found = numerics.gradients("braggnn", patches, incoming, weights=weights, precision="32.32")
    for name, gradient in expected.items():
        # the bias of phi moves all scores of a row alike, so its gradient is noise around zero
        scale = 1e-3 if name == "nlb.phi_layer.bias" else np.abs(gradient).max()
        np.testing.assert_allclose(found[name], gradient, rtol=0, atol=1e-4 * scale)


@pytest.mark.parametrize(
    ("precision", "partials"), [("16.16", None), ("16.16", "float"), ("16.32", None)]
)
@pytest.mark.parametrize("stochastic", [True, False])
def test_half_precision_step_is_near(step, precision, partials, stochastic):
    patches, targets, weights = step
    expected, gradients = oracle(step)
    options = {"precision": precision, "partials": partials, "stochastic_rounding": stochastic}
    result = next(iter(numerics.run("braggnn", patches, weights=weights, **options).values()))
    assert result.dtype == np.float16
    assert np.abs(result.astype(np.float32) - expected).max() < 4e-3
    scale = 1024
    incoming = (expected - targets) * np.float32(2 * scale / targets.size)
    found = numerics.gradients("braggnn", patches, incoming, weights=weights, **options)
    for name in ("cnn_layers_1.weight", "nlb.g_layer.weight", "cnn_layers_2.weight"):
        values = found[name]
        np.testing.assert_array_equal(values, values.astype(np.float16).astype(np.float32))
        error = np.linalg.norm(values / scale - gradients[name])
        assert error < 0.02 * np.linalg.norm(gradients[name])


def test_loss_scaling_saves_small_gradients(step):
    patches, targets, weights = step
    predicted, exact = oracle(step)
    name = "cnn_layers_1.weight"
    errors = {}
    for scale in (2.0**-8, 2.0**10):
        incoming = (predicted - targets) * np.float32(2 * scale / targets.size)
        found = numerics.gradients(
            "braggnn", patches, incoming, weights=weights, stochastic_rounding=False
        )
        error = np.linalg.norm(found[name] / scale - exact[name])
        errors[scale] = error / np.linalg.norm(exact[name])
    assert errors[2.0**10] < 0.02 < 0.2 < errors[2.0**-8]


def test_bits_do_not_depend_on_threads_or_batch_neighbours(step, monkeypatch):
    monkeypatch.setattr(threads, "ALONE_S", 0.0)
    patches, _, weights = step
    before = numba.get_num_threads()
    found = []
    for count in {1, before}:
        numba.set_num_threads(count)
        found.append(next(iter(numerics.run("braggnn", patches, weights=weights).values())))
    numba.set_num_threads(before)
    np.testing.assert_array_equal(found[0], found[-1])


# -- training ----------------------------------------------------------------------------


def train(peaks, **changes):
    arithmetic = changes.pop("arithmetic", ArithmeticOptions())
    schedule = replace(TINY, **changes.pop("schedule", {}))
    options = TrainingOptions(arithmetic=arithmetic, schedule=schedule)
    return train_bragg(peaks, options, **changes)


def interrupted(peaks, steps, **changes):
    """Train until an interrupt comes after so many steps."""
    original = trainer.training_step

    def interrupt(program, state, *arguments):
        if state.step == steps:
            raise KeyboardInterrupt
        return original(program, state, *arguments)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(trainer, "training_step", interrupt)
        train(peaks, **changes)


@pytest.mark.parametrize(
    "arithmetic", [FP32, ArithmeticOptions(precision="16.32"), ArithmeticOptions()]
)
def test_training_lowers_the_loss(peaks, arithmetic):
    trained = train(peaks, arithmetic=arithmetic, schedule={"steps": 30, "train_peaks": 200})
    assert np.mean(trained.losses[-5:]) < 0.2 * trained.losses[0]
    half = [values.astype(np.float16).astype(np.float32) for values in trained.weights.values()]
    stored_as_half = all(
        np.array_equal(*pair) for pair in zip(half, trained.weights.values(), strict=True)
    )
    assert stored_as_half == (arithmetic.precision == "16.16")


@pytest.mark.parametrize("arithmetic", [FP32, ArithmeticOptions()])
def test_a_resumed_run_ends_in_the_same_bits(peaks, arithmetic, tmp_path):
    whole = train(peaks, arithmetic=arithmetic)
    path = tmp_path / "deep" / "run.npz"
    interrupted(peaks, 2, arithmetic=arithmetic, checkpoint=path)
    with np.load(path) as file:
        assert json.loads(str(file["header"]))["step"] == 2
    resumed = train(peaks, arithmetic=arithmetic, checkpoint=path)
    assert resumed.losses == whole.losses
    for name, values in whole.weights.items():
        np.testing.assert_array_equal(resumed.weights[name], values)
    assert [item.name for item in path.parent.iterdir()] == ["run.npz"]
    # a finished run is only read
    assert train(peaks, arithmetic=arithmetic, checkpoint=path).losses == whole.losses


def test_a_finished_run_is_kept_for_its_sources_and_its_configuration(peaks, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    ran, one_step = [], trainer.training_step
    monkeypatch.setattr(trainer, "training_step", lambda *one: ran.append(one) or one_step(*one))
    whole = train(peaks)
    with keep_programs():
        first, count = train(peaks), len(ran)
        again = train(peaks)
        assert len(ran) == count
        assert whole.losses == first.losses == again.losses
        for name, values in whole.weights.items():
            np.testing.assert_array_equal(again.weights[name], values)
        train(peaks, arithmetic=FP32)
        assert len(ran) > count
        count = len(ran)
        monkeypatch.setattr(training, "source_digest", lambda sources: "of other sources")
        train(peaks)
        assert len(ran) > count


def test_a_foreign_checkpoint_is_refused_and_kept(peaks, tmp_path):
    path = tmp_path / "run.npz"
    interrupted(peaks, 1, checkpoint=path)
    before = path.read_bytes()
    for changes, message in (
        ({"arithmetic": FP32}, "partials is 'half' there and 'float' here"),
        ({"arithmetic": ArithmeticOptions(seed=9)}, "rounding_seed is 0 there and 9 here"),
        ({"schedule": {"batch": 8}}, "batch is 16 there and 8 here"),
    ):
        with pytest.raises(DataError, match=message):
            train(peaks, checkpoint=path, **changes)
    with pytest.raises(DataError, match="data is '"):
        train(simulate_peaks(40, 99), checkpoint=path)
    assert path.read_bytes() == before


def test_damaged_checkpoints_are_refused(peaks, tmp_path):
    path = tmp_path / "run.npz"
    interrupted(peaks, 1, checkpoint=path)
    content = path.read_bytes()
    for damaged in (b"", b"nothing", content[: len(content) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="damaged or no checkpoint"):
            train(peaks, checkpoint=path)
        assert path.read_bytes() == damaged
    assert load_checkpoint(tmp_path / "absent.npz", {}) is None


def test_bad_options_are_one_sentence(peaks):
    for make, message in (
        (lambda: replace(TINY, batch=64), "Batch 64 is larger than the data set of 40 peaks"),
        (lambda: replace(TINY, steps=0), "steps is 0"),
        (lambda: replace(TINY, learning_rate=2.0), "learning_rate is 2.0"),
        (lambda: ArithmeticOptions(precision="8.8"), "Unknown precision .* '8.8'"),
        (lambda: ArithmeticOptions(partials="single"), "Unknown partials type 'single'"),
        (lambda: ArithmeticOptions(precision="32.32", partials="half"), "need half operands"),
        (lambda: TrainingOptions(schedule=TINY, loss_scale=0), "Loss scale 0"),
        (lambda: train(peaks, schedule={"train_peaks": 500}), "wants 500 peaks"),
    ):
        with pytest.raises((ConfigError, UnknownNameError), match=message) as caught:
            make()
        assert str(caught.value).count(". ") == 0


def test_each_arithmetic_is_trained_alike(tmp_path):
    assert training.named_schedule("Full").steps == 54_000
    with pytest.raises(UnknownNameError, match="did you mean 'quick'"):
        training.named_schedule("quik")
    training_set, held_out = training.simulate_sets(TINY, seed=1)
    assert (len(training_set), len(held_out)) == (40, 20)
    assert not (training_set.crops[:20] == held_out.crops).all(axis=(1, 2)).any()
    runs = training.train_in_each(training_set, TINY, folder=tmp_path)
    assert [run.options.arithmetic for run in runs] == list(training.ARITHMETICS)
    assert len(list(tmp_path.iterdir())) == 4
    # the same start and the same batches: the first loss differs by rounding only
    first = [run.losses[0] for run in runs]
    assert max(first) - min(first) < 1e-2 * min(first)
    assert len(set(first)) == 4
    again = training.train_in_each(training_set, TINY, folder=tmp_path)
    assert [run.losses for run in again] == [run.losses for run in runs]


@pytest.mark.slow
def test_the_quick_schedule_reaches_the_published_error():
    training_set, held_out = training.simulate_sets(training.named_schedule("quick"), seed=0)
    runs = training.train_in_each(training_set, training.named_schedule("quick"))
    # Rounding to the nearest swallows small updates: so short a training stalls with it.
    for values in shown.training_errors(runs[:3], held_out).values():
        within_75, within_95 = np.percentile(values, [75, 95])
        assert within_75 < 0.29
        assert within_95 < 0.57


# -- what is shown -----------------------------------------------------------------------


def test_tables(peaks):
    trained = train(peaks)
    held_out = peaks.part(260, 300)
    errors = shown.all_errors([trained], held_out)
    table = shown.error_table(errors, reference="pseudo-Voigt fit")
    assert table["method"].iloc[0] == "16.16, half partials, stochastic rounding"
    assert list(table.columns) == [
        *("method", "peaks", "mean_px", "p50_px", "p75_px", "p95_px", "p99_5_px"),
        "p75_change_percent",
    ]
    fit = table.set_index("method").loc["pseudo-Voigt fit"]
    assert fit["p50_px"] < 0.15 < table.set_index("method").loc["detected pixel", "p50_px"]
    assert fit["p75_change_percent"] == 0
    losses = shown.loss_table([trained], every=2)
    assert list(losses["step"]) == [2, 4]
