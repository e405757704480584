"""Power of waiting chips."""

import numpy as np
import pytest

import ipusim
from ipusim.compiler.program import Program
from ipusim.errors import ConfigError
from ipusim.machine.parts import Energy
from ipusim.machine.system import load_system
from ipusim.runtime.calibration import PowerScales
from ipusim.runtime.options.config import make_config
from ipusim.runtime.power import price_per_item, program_energy, static_power_w


@pytest.mark.parametrize("ipus", [1, 2, 3, 4])
def test_every_chip_of_a_machine_in_use_is_powered(ipus):
    system = load_system("IPU-M2000")
    whole = 4 * system.power.static_w_per_ipu + system.power.card_w
    assert static_power_w(system, ipus) == whole > 0


def test_machines_that_are_not_used_take_no_power():
    system = load_system("IPU-POD16")
    assert static_power_w(system, 5) == 2 * static_power_w(system, 4) < static_power_w(system, 16)


def test_energy_is_that_of_operations_and_bytes():
    """A multiplication and an addition for each MAC; busy tiles load and store 8 bytes a cycle."""
    run = ipusim.simulate("braggnn", tier="specification", system="C2", replicas=1).result
    power = load_system("C2").power
    half = power.amp_half_pj_per_flop
    assert run.program.float_macs == 0
    assert run.energy.amp_j == pytest.approx(2 * run.program.macs * half * 1e-12)
    busy = sum(
        step.repeats * step.tiles * (step.compute_cycles + step.copy_cycles)
        for step in run.program.steps
    )
    assert run.energy.sram_j == pytest.approx(16 * busy * power.sram_pj_per_byte * 1e-12)
    thrice = [
        op._replace(steps=tuple(step._replace(repeats=3) for step in op.steps))
        for op in run.program.ops
    ]
    config = make_config(system="C2", replicas=1)
    energy = program_energy(Program(tuple(thrice)), config, PowerScales())
    assert energy.sram_j == pytest.approx(3 * run.energy.sram_j)
    assert energy.exchange_j == pytest.approx(3 * run.energy.exchange_j)
    sent = run.program.exchanged_bytes
    assert run.energy.exchange_j == pytest.approx(sent * power.exchange_pj_per_byte * 1e-12)
    scaled = program_energy(run.program, config, PowerScales(amp=2, sram=3))
    assert tuple(scaled) == pytest.approx((2, 3, 1) * np.array(run.energy))


def test_energy_adds_up():
    spent = Energy(amp_j=1.0, sram_j=2.0, exchange_j=4.0)
    assert spent.total_j == 7
    assert spent.times(2) == spent + spent == Energy(amp_j=2, sram_j=4, exchange_j=8)


def test_float32_costs_what_its_own_multiply_and_add_do():
    how = {"tier": "specification", "system": "C2", "replicas": 1}
    run = ipusim.simulate("braggnn", precision="32.32", **how).result
    macs = run.program.macs
    assert run.program.float_macs == macs == ipusim.simulate("braggnn", **how).result.program.macs
    power = load_system("C2").power
    wide, half = power.amp_float_pj_per_flop, power.amp_half_pj_per_flop
    assert wide / half == pytest.approx((3.7 + 0.9) / (1.1 + 0.4), rel=0.02)
    assert run.energy.amp_j == pytest.approx(2 * macs * wide * 1e-12)


def test_an_hour_has_3600_seconds():
    assert price_per_item(36.0, 2.0) == pytest.approx(0.005)


@pytest.mark.parametrize("price", [-1, float("nan"), float("inf"), "1", None])
def test_what_is_no_price_is_refused(price):
    with pytest.raises(ConfigError, match="give a number, 0 or more"):
        price_per_item(price, 2.0)
