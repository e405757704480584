"""Power of waiting chips."""

import pytest

from ipusim.machine.system import load_system
from ipusim.runtime.step import static_power_w


@pytest.mark.parametrize("ipus", [1, 2, 3, 4])
def test_every_chip_of_a_machine_in_use_is_powered(ipus):
    system = load_system("IPU-M2000")
    whole = 4 * system.power.static_w_per_ipu + system.power.card_w
    assert static_power_w(system, ipus) == whole > 0


def test_machines_that_are_not_used_take_no_power():
    system = load_system("IPU-POD16")
    assert static_power_w(system, 5) == 2 * static_power_w(system, 4) < static_power_w(system, 16)
