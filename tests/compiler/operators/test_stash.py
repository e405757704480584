"""Stash and restore: supersteps of one tensor by hand, and none without tensors."""

from emitting import MK2

from ipusim.compiler.operators.stash import stash_steps
from ipusim.compiler.stacks import load_stack
from ipusim.workload.graph import Tensor

STACK = load_stack("sdk-2.4")
SAVED = ["write to stash", "add to counter", "remainder of counter"]
RESTORED = ["read from stash", "add to counter", "remainder of counter", "restore in place"]


def test_a_tensor_is_written_read_and_copied_into_place():
    # 96 elements a tile are four vectors of 64 bits for each worker
    tensor = Tensor(name="x", shape=(MK2.tiles * 96,), role="activation", dtype="float16")
    saving, restoring = stash_steps([tensor], MK2, STACK)
    assert [step.name for step in saving] == SAVED
    assert [step.name for step in restoring] == RESTORED
    assert saving[0].vertex == "popops::DynamicUpdateSlice1D"
    assert restoring[0].vertex == "popops::DynamicSlice1D"
    assert saving[0].compute_cycles == restoring[0].compute_cycles == 25 + 6 * (35 + 24 + 2 * 4)
    # the remainder of an integer takes 267 cycles of one worker
    assert saving[2].compute_cycles == 11 + 6 * (20 + 267)
    # of all steps only those that slice wait for a counter from elsewhere
    assert [step.exchange_bytes for step in saving] == [4, 0, 0]
    assert [step.exchange_bytes for step in restoring] == [4, 0, 0, 0]
    assert restoring[-1].copy_cycles >= 96 * 2 // MK2.memcpy_bytes_per_cycle


def test_every_tensor_has_steps_of_its_own():
    tensors = [Tensor(name=name, shape=(8,), role="activation") for name in "ab"]
    saving, restoring = stash_steps(tensors, MK2, STACK)
    assert [step.name for step in saving] == 2 * SAVED
    assert [step.name for step in restoring] == 2 * RESTORED
    assert stash_steps([], MK2, STACK) == ([], [])
