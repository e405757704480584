"""Collectives over replicas: conservation, hand values, latencies, and cost that does not grow."""

import time

import pytest
from hypothesis import given, settings, strategies as st
from refused import refused

from ipusim.errors import ConfigError
from ipusim.machine import load_system
from ipusim.machine.interconnect import replica_rings, sync_s
from ipusim.runtime.collectives import (
    NOTHING,
    all_gather,
    all_reduce,
    all_to_all,
    cross_ipu_reductions,
    merged_sizes,
    reduce_scatter,
)

M2000 = load_system("IPU-M2000")
POD16 = load_system("IPU-POD16")
POD64 = load_system("IPU-POD64")
POD256 = load_system("IPU-POD256")
LINK = 16e9 * 0.85  # payload of one IPU-Link in one direction
GW_LINK = 12.5e9 * 0.85

scales = st.sampled_from(
    [(M2000, 2, 1), (M2000, 4, 1), (POD16, 16, 1), (POD16, 3, 1), (POD16, 4, 4), (POD64, 64, 1),
     (POD64, 16, 4), (POD256, 128, 1), (POD256, 256, 1), (POD256, 64, 4)]
)  # fmt: skip
tensors = st.lists(st.integers(0, 10**9), min_size=1, max_size=8)


def test_a_pair_exchanges_halves_over_its_own_links():
    found = all_reduce(M2000, 2, 1, [10**9])
    assert found.transfer_s == pytest.approx(2 * 0.5e9 / (6 * LINK))


def test_four_chips_go_round_both_ways_over_the_rails():
    found = all_reduce(M2000, 4, 1, [10**9])
    assert found.transfer_s == pytest.approx(2 * 3 * 0.125e9 / (2 * LINK))


def test_small_tensors_meet_half_way():
    step = M2000.chip.seconds(M2000.chip.global_sync_cycles) + M2000.ipu_link.latency_s
    found = all_reduce(M2000, 4, 1, [1000])
    assert found.each_latency_s == pytest.approx(2 * 2 * step)
    assert found.transfer_s == pytest.approx(2 * 2 * 250 / (2 * LINK))


def test_ring_latency_counts_every_step():
    step = sync_s(POD64, 64) + POD64.ipu_link.latency_s
    assert all_reduce(POD64, 64, 1, [10**9]).each_latency_s == pytest.approx(2 * 63 * step)


def test_racks_add_a_second_ring_over_gateways():
    size = 64 * 4 * 10**6
    inner, both = all_reduce(POD64, 64, 1, [size]), all_reduce(POD256, 256, 1, [size])
    shard = size // 64
    gateway_s = 2 * 3 * (shard // 4) / (2 * GW_LINK / 4)
    assert both.transfer_s - inner.transfer_s == pytest.approx(gateway_s)
    assert both.each_latency_s - inner.each_latency_s == pytest.approx(2 * 3 * (2e-6 + 2e-6))


def test_replicas_of_several_chips_use_a_closed_ring_only_on_a_full_torus():
    (line,) = replica_rings(POD64, 4, 4)
    (ring,) = replica_rings(POD64, 16, 4)
    assert (line.directions, ring.directions) == (1, 2)
    assert line.bytes_per_s == ring.bytes_per_s == 2 * LINK
    assert [ring.members for ring in replica_rings(POD256, 64, 4)] == [16, 4]
    (two,) = replica_rings(POD16, 2, 2)
    assert (two.directions, two.bytes_per_s) == (1, 2 * LINK)
    assert ring.step_latency_s > replica_rings(POD64, 32, 2)[0].step_latency_s


def test_every_replica_gets_its_part_of_every_tensor():
    """1 MB each on a ring of four, both ways: hops of 1, 1 and 2 carry four parts on two links."""
    found = all_to_all(M2000, 4, 1, [4 * 10**6])
    assert found.transfer_s == pytest.approx(4 * 10**6 / 2 / (2 * LINK))
    step = M2000.chip.seconds(M2000.chip.global_sync_cycles) + M2000.ipu_link.latency_s
    assert found.each_latency_s == pytest.approx(2 * step)


def test_a_buffer_may_be_exactly_full():
    assert merged_sizes([4, 4, 4], 8) == (8, 4)


@given(scales, tensors, st.sampled_from([0.0, 1e-4]))
def test_reduce_scatter_and_all_gather_make_an_all_reduce(scale, sizes, calibrated):
    whole = all_reduce(*scale, sizes)
    halves = reduce_scatter(*scale, sizes), all_gather(*scale, sizes)
    assert whole.at(calibrated) == pytest.approx(sum(half.at(calibrated) for half in halves))
    assert whole.paid == sum(half.paid for half in halves)


@given(scales, tensors)
def test_links_carry_the_bytes_of_a_ring(scale, sizes):
    """At least; where whole fragments meet half way links carry more, to be sooner done."""
    found, least, most = all_reduce(*scale, sizes), 0.0, 0.0
    for size in filter(None, sizes):
        for ring in replica_rings(*scale):
            steps = 2 * (ring.members - 1)
            carried_s = steps / ring.members * size / (ring.directions * ring.bytes_per_s)
            least += carried_s
            # Fragments, and halves of them, are whole bytes.
            most += carried_s + steps * (ring.step_latency_s + 2 / ring.bytes_per_s)
            size /= ring.members
    assert found.transfer_s >= least * (1 - 1e-9)
    assert found.at(0.0) <= most * (1 + 1e-9)


@given(scales, st.integers(0, 10**9), st.integers(0, 10**6))
def test_more_bytes_never_take_less_time(scale, size, more):
    first, second = all_reduce(*scale, [size]), all_reduce(*scale, [size + more])
    assert second.at(0.0) >= first.at(0.0) - 1e-15


@given(scales, tensors, st.integers(1, 10**9))
def test_merging_saves_latency(scale, sizes, merge):
    buffers = merged_sizes(sizes, merge)
    apart, joined = all_reduce(*scale, sizes), all_reduce(*scale, buffers)
    assert len(buffers) <= sum(map(bool, sizes))
    assert (
        joined.each_latency_s <= apart.each_latency_s + 1e-12
        or joined.at(0.0) <= apart.at(0.0) + 1e-12
    )


@settings(max_examples=50)
@given(tensors, st.integers(1, 10**9))
def test_buffers_hold_every_byte_in_order(sizes, merge):
    buffers = merged_sizes(sizes, merge)
    assert sum(buffers) == sum(sizes)
    assert all(buffer <= max(merge, max(sizes)) for buffer in buffers)
    assert merged_sizes(sizes) == tuple(size for size in sizes if size)


def test_calibrated_latency_counts_collectives_and_hops_between_machines():
    # Both passes meet half way round 64 chips; a sync leaves 15 of the 16 machines.
    hops = 2 * 32 * 15
    plain = all_reduce(POD64, 64, 1, [1000] * 10)
    assert plain.at(1e-4) - plain.at(0.0) == pytest.approx(10 * hops * 1e-4)
    assert plain.paid == 10 * hops
    assert reduce_scatter(POD64, 64, 1, [1000] * 10).paid == 10 * hops / 2
    assert all_reduce(POD64, 64, 1, merged_sizes([1000] * 10, 50_000_000)).paid == hops
    # A step to each of three more racks syncs over all of a rack and to the next.
    assert all_reduce(POD256, 256, 1, [1000]).paid == hops + 2 * 3 * 16
    assert all_reduce(M2000, 4, 1, [1000]).paid == 0
    assert all_reduce(POD64, 4, 1, [1000]).paid == 0


def test_one_replica_and_nothing_to_reduce_cost_nothing():
    assert all_reduce(M2000, 1, 4, [10**9]) == NOTHING
    assert all_reduce(POD64, 64, 1, []) == NOTHING
    assert all_reduce(POD64, 64, 1, [0, 0]) == NOTHING
    assert cross_ipu_reductions(POD64, 1, 142, 512).at(1e-5) == 0


def test_batch_norm_reductions_are_latency():
    found = cross_ipu_reductions(POD16, 2, 142, 512)
    one = all_reduce(POD16, 2, 1, [512])
    assert found.at(0.0) == pytest.approx(142 * one.at(0.0))
    assert found.repeats * found.each_latency_s > 100 * found.transfer_s
    assert found.at(4e-6) - found.at(0.0) == pytest.approx(142 * 4e-6)
    assert found.repeats * found.paid == 142


def test_cost_does_not_grow_with_replicas():
    pod = load_system("Bow Pod1024")
    sizes = list(range(1000, 161_000, 1000))
    begun = time.perf_counter()
    for _ in range(20):
        all_reduce(pod, 1024, 1, sizes)
    assert (time.perf_counter() - begun) / 20 < 0.02


@pytest.mark.parametrize(
    ("system", "replicas", "chips", "message"),
    [
        (POD256, 2, 128, "use at most 64"),
        (POD256, 96, 1, "use a multiple of 64"),
    ],
)
def test_impossible_scales_get_one_sentence(system, replicas, chips, message):
    with refused(message, ConfigError):
        all_reduce(system, replicas, chips, [1])


def test_every_nth_replica_meets_its_like():
    # Within a rack the side-by-side rings share the links; each machine has its own gateway.
    assert replica_rings(POD64, 16, 4, 16) == ()
    (far,) = replica_rings(POD256, 64, 4, 16)
    assert far == replica_rings(POD256, 64, 4)[1]
    near, gateway = replica_rings(POD256, 64, 4, 4)
    whole = replica_rings(POD256, 64, 4)[0]
    assert (near.members, near.bytes_per_s) == (4, whole.bytes_per_s / 4)
    assert near.step_latency_s > whole.step_latency_s
    assert (near.sync_hops, whole.sync_hops, gateway, far.sync_hops) == (15, 15, far, 16)
    with pytest.raises(ConfigError, match="Groups of 24 of the 48 replicas cross those of 16"):
        replica_rings(POD256, 48, 4, 24)


def test_every_step_syncs_all_machines_of_a_ring():
    # Two replicas of eight chips lie on four machines and meet in one step; 16 chips half way.
    for replicas, chips, steps in ((16, 1, 8), (8, 2, 7), (4, 4, 3), (2, 8, 1)):
        found = all_reduce(POD16, replicas, chips, [10])
        assert found.paid == 2 * steps * 3
        assert found.at(1e-6) - found.at(0.0) == pytest.approx(found.paid * 1e-6)
    # Halves of much data go all the way round, each in its direction.
    assert all_reduce(POD16, 16, 1, [10**9]).paid == 2 * 15 * 3
