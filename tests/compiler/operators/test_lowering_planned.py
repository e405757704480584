"""Supersteps of convolutions and products in training."""

from dataclasses import replace
from functools import partial

import pytest
import windows

from ipusim.compiler.convolution.planner import plan
from ipusim.compiler.eras import ERA_2_4
from ipusim.compiler.lower import lower
from ipusim.compiler.operators.conv import conv_pass
from ipusim.compiler.operators.products.orders import _begins_outside
from ipusim.compiler.program import LoweredOp, Superstep
from ipusim.compiler.stacks import load_stack
from ipusim.compiler.tiles import Runs, Tile, piece_copy_cycles, rearranged_copy_cycles
from ipusim.compiler.vertices.elementwise import (
    found_group,
    regrouping,
    scaled_add_runs_cycles,
)
from ipusim.machine import load_chip
from ipusim.study.evidence.graphs import forward_graph, training_graph
from ipusim.workload.graph import Conv, Elementwise, MatMul, Op
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.operators.conv import conv_data_gradient, conv_weight_gradient
from ipusim.workload.training import training_graphs

CHIP, STACK = load_chip("GC200"), load_stack("sdk-2.0")


WIDE = MatMul(m=512, k=4096, n=8192, weights_operand=True)

conv = partial(windows.conv, in_channels=128, out_channels=256, field=(28, 28))


def pointwise(**changes) -> Conv:
    return conv(kernel=(1, 1), **windows.NO_PADDING, **changes)


def lowered(graph, stack=STACK) -> dict[str, LoweredOp]:
    program = lower(graph.validate(), CHIP, stack, host_dtype=None)
    return {op.name: op for op in program.ops}


def steps(graph) -> dict[str, dict[str, Superstep]]:
    return {name: {step.name: step for step in op.steps} for name, op in lowered(graph).items()}


def test_kinds_of_passes():
    forward = conv()
    assert conv_pass(forward, 2).kind == "conv"
    assert conv_pass(forward, 2, training=True).kind == "conv_forward"
    for training in (False, True):
        for gradient, kind in (
            (conv_data_gradient, "conv_data_gradient"),
            (conv_weight_gradient, "conv_weight_gradient"),
        ):
            assert conv_pass(gradient(forward), 2, training=training).kind == kind


def test_every_pass_has_its_own_steps():
    found = steps(training_graph(conv()))
    assert not {"transpose weights", "turn weights"} & set(found["forward"])
    assert list(found["forward.data_gradient"])[:2] == ["transpose weights", "turn weights"]
    turned = found["forward.data_gradient"]["turn weights"]
    weights = 128 * 256 * 9 * 2
    assert turned.exchange_bytes == pytest.approx(weights / CHIP.tiles, rel=0.05)


def test_operands_of_a_weight_gradient_are_sent_turned_and_sent_again():
    def update(batch: int, **changes):
        return steps(training_graph(conv(batch=batch, **changes)))["forward.weight_gradient"]

    share = (128 + 256) * 28 * 28 * 2 / CHIP.tiles
    found = update(16)
    step = found["transpose activations and gradients"]
    assert step.exchange_bytes == pytest.approx(16 * share, rel=0.1)
    assert step.compute_cycles > 0
    # Windows, which overlap, are copied after that.
    placed = found["rearrange activations and gradients"]
    assert placed.exchange_bytes > 1.5 * step.exchange_bytes
    assert placed.compute_cycles == 0
    # Where there are no windows, twelve samples are padded to the plan's sixteen first.
    wide = {"in_channels": 1536, "out_channels": 1536}
    found = steps(training_graph(pointwise(batch=12, field=(1, 1), **wide)))
    turned = found["forward.weight_gradient"]["transpose activations and gradients"]
    assert turned.exchange_bytes == 2 * regrouping(16 * 1536, 16, 16, "float16", CHIP).received
    # Three channels are no block.
    assert "rearrange operands" in update(4, in_channels=3)


@pytest.mark.parametrize(("stack", "apart"), [("sdk-2.0", False), ("sdk-2.4", True)])
def test_later_stacks_transpose_each_operand_in_a_compute_set_of_its_own(stack, apart):
    graph = training_graph(MatMul(m=32, k=768, n=768, weights_operand=True))
    blocks = regrouping(32 * 768, 16, 16, "float16", CHIP)
    ran = lowered(graph, load_stack(stack))["forward.weight_gradient"].steps
    turned = [step for step in ran if step.name.startswith("transpose")]
    names = ["transpose B", "transpose A"] if apart else ["transpose B and A"]
    assert [step.name for step in turned] == names
    assert sum(step.compute_cycles for step in turned) == 2 * blocks.cycles
    # The blocks of both arrive before the first.
    assert [step.exchange_bytes for step in turned] == [2 * blocks.received, 0][: len(names)]
    assert all(step.temp_bytes >= 2 * blocks.received for step in turned)


def test_samples_of_a_window_are_blocks_of_their_own():
    # The plan's group of 16 holds four samples and four positions, which are together only once
    # windows are copied: blocks have the four samples.
    graph = training_graph(conv(batch=4, in_channels=256, out_channels=512))
    assert "1x16x16" in lowered(graph)["forward.weight_gradient"].plan
    blocks = [regrouping(4 * size * 28 * 28, 16, 4, "float16", CHIP) for size in (256, 512)]
    turned = steps(graph)["forward.weight_gradient"]["transpose activations and gradients"]
    assert turned.exchange_bytes == sum(each.received for each in blocks)
    assert turned.compute_cycles == sum(each.cycles for each in blocks)


@pytest.mark.parametrize(
    ("channels", "transform", "in_windows"),
    [((64, 192), "swap, expand 1", 192), ((128, 64), "expand 1", 128)],
)
def test_windows_are_copied_piece_by_piece(channels, transform, in_windows):
    graph = training_graph(conv(in_channels=channels[0], out_channels=channels[1]))

    def update(stack):
        return lowered(graph, stack)["forward.weight_gradient"]

    found, otherwise = update(STACK), update(replace(STACK, copies_windows=False))
    assert found.transform == transform
    turned, placed = found.steps[:2]
    # Of one operand, each row has three windows as long as one of the other; pieces hold the batch.
    elements = -(-4 * in_windows * 28 * 3 * 28 // found.tiles)
    assert placed.copy_cycles == piece_copy_cycles(-(-elements // 4), CHIP)
    assert turned.copy_cycles == 0 < otherwise.steps[0].copy_cycles
    assert 0 < otherwise.steps[1].copy_cycles < placed.copy_cycles


def flattened(**changes):
    """Return the first supersteps of a weight gradient of four samples, and over how many tiles."""
    graph = training_graph(conv(batch=4, field=(56, 56), **changes))
    update = lowered(graph)["forward.weight_gradient"]
    return update.transform, update.steps[:2], update.tiles


def test_windows_of_outputs_in_the_channels_are_spread_out_before_blocks_are_transposed():
    channels, rows, spread = 64, 4 * 56, 3
    transform, (turned, placed), _ = flattened(in_channels=channels, out_channels=channels)
    assert transform == "flatten 1"
    # Gradients have a window for each of three outputs; 56 positions of four samples fill groups.
    once = channels * 56 * rows
    blocks = [regrouping(elements, 16, 16, "float16", CHIP) for elements in (once, spread * once)]
    assert turned.name == "transpose activations and gradients"
    assert turned.exchange_bytes == sum(each.received for each in blocks)
    assert turned.copy_cycles == piece_copy_cycles(-(-spread * once // CHIP.tiles // 16), CHIP)
    assert placed.copy_cycles == 0


def test_no_blocks_are_found_where_the_first_window_begins_with_padding():
    transform, (turned, placed), tiles = flattened(in_channels=64, out_channels=256)
    assert transform == "swap, flatten 1"
    assert turned.name == "transpose gradients"
    assert turned.exchange_bytes == regrouping(4 * 256 * 56 * 56, 16, 16, "float16", CHIP).received
    # Activations move one by one, three windows of 56 positions in each of 56 rows.
    spread = -(-4 * 64 * 56 * 3 * 56 // tiles)
    assert placed.copy_cycles == rearranged_copy_cycles(2 * spread, 2, CHIP)


def test_serial_parts_of_swapped_operands_are_slices_of_the_activations():
    graph = training_graph(conv(batch=4, field=(56, 56), in_channels=64, out_channels=256))
    little = replace(STACK, available_memory_proportion=0.05)
    update = lowered(graph, little)["forward.weight_gradient"]
    assert update.transform == "swap, flatten 1"
    assert update.plan.endswith("f15 k07 i14 o3 os4")
    turned, placed = (
        step for step in update.steps if step.name.split()[0] in ("transpose", "rearrange")
    )
    assert (turned.repeats, placed.repeats) == (4, 4)
    # Each part needs all gradients, and three windows of a fourth of the channels: five tiles share
    # the blocks of 16 x 16 of eight rows.
    assert turned.exchange_bytes == regrouping(4 * 256 * 56 * 56, 16, 16, "float16", CHIP).received
    assert placed.copy_cycles == rearranged_copy_cycles(2 * 2 * 16 * 16, 2, CHIP)


def test_an_input_that_all_serial_parts_use_is_rearranged_once():
    graph = training_graph(conv(batch=4, field=(56, 56), in_channels=64, out_channels=256))
    little = replace(load_stack("sdk-2.4"), available_memory_proportion=0.07)
    update = lowered(graph, little)["forward.weight_gradient"]
    assert (update.transform, update.plan[-3:]) == ("swap, flatten 1", "os2")
    # The plan's input are the gradients.
    repeats = {step.name: step.repeats for step in update.steps}
    assert repeats["transpose gradients"] == repeats["rearrange gradients"] == 1
    assert repeats["rearrange activations"] == repeats["convolve"] == 2


def test_serial_parts_rearrange_their_own_slice_of_the_weights():
    graph = training_graph(conv(batch=4, field=(56, 56), in_channels=128, out_channels=512))
    little = replace(load_stack("sdk-2.4"), available_memory_proportion=0.1)
    update = lowered(graph, little)["forward.weight_gradient"]
    assert update.plan == "AMP nx1 1x4x16 / f16 i56 o4 os4"
    (placed,) = (step for step in update.steps if step.name == "rearrange gradients")
    part = -(-2 * (4 * 512 * 56 * 56 // 4) // (6 * 56 * 4))
    assert placed.repeats == 4
    assert placed.exchange_bytes == 4 * -(-part // 4)


def test_the_fullest_tile_has_whole_blocks_of_windows():
    graph = training_graph(conv(batch=4, field=(224, 224), in_channels=4, out_channels=64))
    update = lowered(graph)["forward.weight_gradient"]
    assert update.transform == "swap, flatten 1"
    assert update.plan == "AMP nx1 1x16x8 / k013 i56 o2"
    # Three outputs of 4 channels are 12, of which the first of two tiles has 8: with 16 of 4 x 224
    # positions and 18 of 224 rows, each on one tile.
    fullest = 8 * 16 * 18
    assert update.steps[1].copy_cycles == rearranged_copy_cycles(2 * fullest, 2, CHIP)


def test_elements_of_merged_groups_move_one_by_one():
    chip = load_chip("GC2")
    layer = conv(batch=4, in_channels=512, out_channels=512, groups=512, field=(14, 14),
                 stride=(2, 2), padding_lower=(1, 1), padding_upper=(0, 0))  # fmt: skip
    graph = training_graph(layer)
    stack = replace(STACK, partials="float")
    program = lower(graph.validate(), chip, stack, host_dtype=None)
    (gradient,) = (op for op in program.ops if op.name == "forward.data_gradient")
    assert (gradient.transform, gradient.plan) == ("combine 8", "AMP nx1 1x8x8 / g64 b2 f03 f13")
    turned, moved = gradient.steps[:2]
    assert turned.copy_cycles == rearranged_copy_cycles(128, 2, chip)
    # Of the gradients a tile has its share; of the 3 x 3 blocks of 8 x 8 weights two, 256 bytes.
    single = 2 * -(-4 * 512 * 7 * 7 // 1152) + 2 * 2 * 8 * 8
    assert moved.exchange_bytes == 4 * -(-single // 4)
    assert moved.copy_cycles == rearranged_copy_cycles(single, 2, chip)


def test_where_the_first_window_begins():
    layer = conv_weight_gradient(conv(padding_lower=(1, 1), stride=(2, 2), kernel=(4, 4)))
    begins_outside = partial(_begins_outside, layer, [0, 1])
    # Activations begin with their padding, gradients between two of their own.
    assert begins_outside(swap=True)
    assert begins_outside(swap=False)
    assert not _begins_outside(conv_weight_gradient(conv()), [0, 1], swap=False)
    bare = conv_weight_gradient(conv(**windows.NO_PADDING))
    assert not _begins_outside(bare, [0, 1], swap=True)
    assert not _begins_outside(layer, [], swap=True)


def sliced_update(stack, layer=WIDE, memory=0.1):
    """The plan of a weight gradient that has little memory, and the first steps of each name."""
    stack = replace(stack, available_memory_proportion=memory)
    update = lowered(training_graph(layer), stack)["forward.weight_gradient"]
    return update.plan, {step.name: step for step in reversed(update.steps)}


def test_what_serial_parts_slice_is_put_into_order_once():
    plan, found = sliced_update(STACK)
    assert plan.endswith("os8")
    # A is sliced, and transposed as a whole before; B is whole in each part.
    whole, parts = found["transpose A"], found["transpose B"]
    assert (whole.repeats, parts.repeats) == (1, 8)
    assert whole.exchange_bytes == regrouping(512 * 4096, 16, 16, "float16", CHIP).received
    assert parts.exchange_bytes == regrouping(512 * 8192, 16, 16, "float16", CHIP).received
    assert (found["rearrange A"].repeats, found["rearrange B"].repeats) == (1, 8)
    # A tile has one block of each part.
    assert found["rearrange A"].exchange_bytes == 8 * 16 * 16 * 2
    # Nothing else is arranged for slices: the planner's cycles for that are a guess at the same.
    assert "arrange for slices" not in found
    # SDK 1.0 copies element by element.
    plan, found = sliced_update(load_stack("sdk-1.0"))
    assert "os" in plan
    assert found["rearrange A"].repeats == 1
    assert "transpose A" not in found


@pytest.mark.parametrize(
    ("stack", "blocks", "piece"), [("sdk-2.4", True, 8), ("sdk-3.x", False, 16)]
)
def test_parts_of_an_operand_whose_groups_are_not_whole_are_padded(stack, blocks, piece):
    # Tokens are summed over: 1,576 are 98 groups of 16 and a half. Before SDK 3.0 groups of 8 are
    # sliced, later ones of 16, of which the last is not whole and poplibs finds none.
    layer = MatMul(m=1576, k=768, n=3072, weights_operand=True)
    plan, found = sliced_update(load_stack(stack), layer, 0.08)
    assert "os" in plan
    assert ("transpose A" in found) == blocks
    padded = found["rearrange padded A"]
    assert padded.repeats == found["multiply"].repeats > 1
    copies = rearranged_copy_cycles(padded.exchange_bytes, 2 * piece, CHIP)
    assert padded.copy_cycles == copies


def test_an_input_of_a_product_that_all_serial_parts_use_is_sent_once():
    layer = MatMul(m=4096, k=768, n=3072, weights_operand=True)
    plan, found = sliced_update(load_stack("sdk-2.4"), layer, 0.3)
    assert plan.endswith("f115 i16 o6 os2")
    # Gradients are the plan's input: ordered, as is all for a weight gradient, and sent to all:
    # 256 of 205 columns, which neighbours receive together.
    order, sent = found["rearrange B and A"], found["broadcast input"]
    assert (order.repeats, sent.repeats, found["multiply"].repeats) == (1, 1, 2)
    assert sent.exchange_bytes == 256 * 205 * 2 // 2
    assert found["multiply"].copy_cycles == 0
    # A tile that uses an input alone holds it already.
    assert "broadcast input" not in sliced_update(load_stack("sdk-2.4"), layer)[1]


def test_an_input_of_a_convolution_that_all_serial_parts_use_is_sent_once():
    g = GraphBuilder("convolutions")
    x = g.conv("first", g.input("x", (4, 64, 28, 28)), 256, 1)
    graph = g.finish(g.conv("second", x, 512, 3)).with_precision("16.16")
    little = replace(load_stack("sdk-2.4"), available_memory_proportion=0.1)
    op = lowered(graph, little)["second"]
    assert op.plan.endswith("b2 f05 i8 o16 os2")
    found = {step.name: step for step in op.steps}
    # Two samples, eight rows of 28 with their window, 32 channels; neighbours share the bus.
    assert found["broadcast input"].exchange_bytes == 2 * 8 * 28 * 32 * 2 // 2
    assert (found["broadcast input"].repeats, found["convolve"].repeats) == (1, 2)
    # In each part only weights arrive: nine taps of 32 by 16 channels, less a tile's own tenth.
    assert found["convolve"].exchange_bytes < 9 * 32 * 16 * 2
    assert found["convolve"].copy_cycles == 0


def forward_of(layer: MatMul, chip=CHIP, stack=STACK):
    """The plan of a forward product, and its steps."""
    graph = forward_graph(layer)
    op = lower(graph, chip, stack, host_dtype=None).ops[0]
    return op.plan, {step.name: step for step in op.steps}


def slice_cycles(elements: int) -> int:
    """Cycles of a slice at tag 2.4.0: two for every vector of four halves of a worker."""
    return 25 + 6 * (35 + 24 + 2 * (-(-elements // 6) // 4))


def test_every_serial_part_is_named_by_a_counter_that_goes_to_all_tiles():
    plan, found = forward_of(MatMul(m=600, k=512, n=30000), load_chip("GC2"))
    assert plan == "AMP 1x1 1x16x8 / f1202 i3 o2 os3"
    assert [*found][-2:] == ["write slice", "count parts"]
    # 200 channels, 25 groups of 8, of which a tile has 13; 149 columns; 11 groups of 16 summed.
    sliced, written, counted = (found[name] for name in ("slice weights", *[*found][-2:]))
    assert sliced.compute_cycles == slice_cycles(-(-13 * 8 * 11 * 16 // 202))
    # A third of the sums are a tile's own, and all of them are written.
    assert written.compute_cycles == slice_cycles(-(-13 * 8 * 149 // 3))
    for step in (sliced, written):
        assert (step.exchange_bytes, step.sync_cycles) == (4, STACK.superstep_cycles)
    assert (counted.exchange_bytes, counted.sync_cycles) == (0, STACK.compute_set_cycles)
    assert (counted.tiles, sliced.tiles) == (1, 202 * 3 * 2)
    assert {step.repeats for step in found.values()} == {3}
    assert not {"slice input", "accumulate"} & {*found}


def test_parts_of_what_is_summed_over_slice_both_operands_and_write_nothing():
    little = replace(STACK, available_memory_proportion=0.05)
    plan, found = forward_of(MatMul(m=512, k=4096, n=512), CHIP, little)
    assert plan == "AMP 1x1 1x16x8 / f18 i8 is4 o22"
    # 1,024 channels a part, 128 on a tile, of 64 columns and of 24 rows.
    assert found["slice input"].compute_cycles == slice_cycles(-(-64 * 128 // 22))
    assert found["slice weights"].compute_cycles == slice_cycles(24 * 128 // 8)
    assert "write slice" not in found
    assert found["count parts"].repeats == found["accumulate"].repeats == 4


def test_parts_that_do_not_fill_groups_are_padded_and_cut():
    plan, found = forward_of(MatMul(m=600, k=256, n=30000), load_chip("GC2"))
    assert plan == "AMP 1x1 1x16x8 / f1242 o5 os2"
    # Of the 300 channels of a part 4 are left over by groups of 8: 8-byte pieces are brought
    # together of the 8 groups and 124 columns of a tile, at poplibs' 0.4404 cycles a byte less the
    # exchange.
    written = 8 * 8 * 124 * 2
    assert found["write slice"].copy_cycles == written * 451 // 1024 - written // 4
    # 242 tiles want the same 64 padded channels of 256: 128 of them hold a block of 16 x 8 each
    # (lib/poputil/TensorUseTracker.cpp, resolve).
    padded = found["pad weights"]
    assert (padded.exchange_bytes, padded.repeats) == (16 * 8 * 2, 2)
    # A third of the channels are whole groups.
    even, whole = forward_of(MatMul(m=600, k=512, n=30000), load_chip("GC2"))
    assert even.endswith("os3")
    assert whole["write slice"].copy_cycles == 0
    assert "pad weights" not in whole


def test_pieces_of_cut_parts_are_as_long_as_what_is_left_of_a_group():
    chip = load_chip("GC2")
    plan, found = forward_of(MatMul(m=1000, k=256, n=20000), chip, load_stack("sdk-1.0"))
    assert plan == "AMP 1x1 1x16x8 / f1152 o8 os4"
    # 250 channels leave 2: 4-byte pieces, at 3.125 cycles a byte.
    written = 4 * 8 * 132 * 2
    assert found["write slice"].copy_cycles == written * 3200 // 1024 - written // 4


@pytest.mark.parametrize(
    ("size", "sums", "cut"),
    [
        # 137 columns by five groups of channels: three others send what crosses a group's end.
        ((200, 512, 10000), 4, True),
        # One other has nobody to wait for.
        ((200, 512, 20000), 2, False),
        # Two tiles share a group of channels each.
        ((512, 768, 3072), 4, False),
    ],
)
def test_partials_in_two_pieces_from_several_tiles_take_longer(size, sums, cut):
    m, k, n = size
    found = []
    for percent in (100, 145):
        stack = replace(STACK, cut_partials_percent=percent)
        plan, of_product = forward_of(MatMul(m=m, k=k, n=n), stack=stack)
        assert f" i{sums} " in plan
        found.append(of_product["reduce partials"].exchange_cycles)
    exact, longer = found
    assert longer == (-(-exact * 145 // 100) if cut else exact)


def test_one_part_needs_no_counter():
    plan, found = forward_of(MatMul(m=512, k=4096, n=512))
    assert "s" not in plan.split("/")[1]
    assert not {"slice input", "slice weights", "write slice", "count parts"} & {*found}


def test_a_pointwise_weight_gradient_turns_blocks_of_its_own_group():
    update = steps(training_graph(pointwise(batch=64)))["forward.weight_gradient"]
    turned, placed = list(update.values())[:2]
    assert turned.exchange_bytes == pytest.approx(placed.exchange_bytes, rel=0.1)
    # They are sent where they belong, so that nothing is copied.
    assert turned.copy_cycles == placed.copy_cycles == 0


@pytest.mark.parametrize(
    ("layer", "swap"),
    [
        (MatMul(m=128, k=768, n=3072, weights_operand=True), False),
        (MatMul(m=128, k=3072, n=768, weights_operand=True), True),
        (conv(), True),
        (pointwise(batch=16), False),
    ],
)
def test_a_gradient_is_turned_where_weights_take_it(layer, swap):
    graph = training_graph(layer)
    assert ("swap" in lowered(graph)["forward.weight_gradient"].transform) == swap
    found = steps(graph)
    assert "rearrange output" not in found["forward.weight_gradient"]
    *before, added = found["add"].values()
    # In weights rows of B and input channels sit together, in a gradient rows and output channels
    # do, or columns and input channels if the plan swaps.
    turned = swap == isinstance(layer, MatMul)
    assert [step.name for step in before] == ["regroup gradient"] * turned
    # Groups of 16 come together, or pieces of 4 of transposed blocks.
    piece = 8 if turned else 32
    share = added.exchange_bytes
    assert added.copy_cycles == pytest.approx(rearranged_copy_cycles(share, piece, CHIP), abs=1)


def test_groups_of_one_channel_sit_together_in_weights_and_gradients():
    graph = training_graph(conv(in_channels=144, out_channels=144, groups=144))
    found = lowered(graph).values()
    # Each pass has four groups of convolutions together.
    assert all(" 4x1x1 " in op.plan for op in found if op.plan)
    moved = {step.name: step for op in found for step in op.steps}
    assert "regroup gradient" not in moved
    added = moved["scaled add"]
    copies = rearranged_copy_cycles(added.exchange_bytes, 4 * 2, CHIP)
    assert added.copy_cycles == pytest.approx(copies, abs=1)
    assert moved["turn weights"].copy_cycles == 0


def test_without_what_was_adopted_turned_pieces_lie_where_they_arrive():
    layer = MatMul(m=128, k=3072, n=768, weights_operand=True)
    stack = replace(STACK, operands_in_order=False)
    ops = lowered(training_graph(layer), stack).values()
    found = {step.name: step for op in ops for step in op.steps}
    assert found["turn weights"].copy_cycles == found["scaled add"].copy_cycles == 0


def test_an_accumulator_lies_like_its_gradient():
    g = GraphBuilder("layer")
    graph = g.finish(g.linear("fc", g.input("x", (128, 3072)), 768)).with_precision("16.16")
    micro = training_graphs(graph, loss="mean_squared", accumulate="scaled_add").micro_batch
    (added,) = steps(micro)["fc.weight.accumulated"].values()
    assert added.exchange_bytes == 0


def test_zeros_go_through_the_output_of_a_strided_pointwise_gradient():
    graph = training_graph(pointwise(stride=(2, 2)))
    strided = lowered(graph)["forward.data_gradient"]
    (spread,) = (step for step in strided.steps if step.name == "spread output")
    # The whole input, in groups of channels, at five quarters of what eight bytes take.
    tile_bytes = 2 * 4 * 128 * 28 * 28 / strided.tiles
    assert spread.copy_cycles == pytest.approx(tile_bytes / 8 * 5 / 4, abs=1)
    for layer in (pointwise(), conv(stride=(2, 2))):
        found = steps(training_graph(layer))["forward.data_gradient"]
        assert "spread output" not in found


def test_equal_convolutions_share_their_code():
    shared = training_graph(pointwise(out_channels=128))
    assert [op.name for op in shared.ops][:2] == ["copy x", "copy dy"]
    apart = training_graph(pointwise())
    assert apart.ops[0].name == "forward"


def test_activations_reach_a_weight_gradient_through_its_rearrangement():
    graph = training_graph(conv())
    alone = steps(graph)["forward.weight_gradient"]
    doubled = replace(graph.tensors["x"], name="x2", role="activation")
    made = Op(
        name="make",
        params=Elementwise(function="relu"),
        inputs=("x",),
        outputs=("x2",),
    )
    ops = tuple(
        replace(op, inputs=("x2", "dy")) if op.name == "forward.weight_gradient" else op
        for op in graph.ops
    )
    later = replace(graph, tensors={**graph.tensors, "x2": doubled}, ops=(made, *ops))
    assert steps(later)["forward.weight_gradient"] == alone


@pytest.mark.parametrize(("groups", "blocks"), [(1, 1), (64, 8)])
def test_slic_holds_one_block_of_partials_more(groups, blocks):
    op, few = conv(in_channels=4 * groups, out_channels=4 * groups, groups=groups), 8
    chip, stack = replace(CHIP, tiles=few), load_stack("sdk-2.4")
    chosen = plan(conv_pass(op, 2), chip, stack.planner_rules())
    cost, users = chosen.cost, chosen.split.weight_users
    assert (chosen.method, chosen.split.group * users) == ("SLIC", few)
    graph = forward_graph(op).validate()
    (found,) = (one for one in lower(graph, chip, stack, host_dtype=None).ops if one.plan)
    # The result takes the room of the partials, and the input lies where it is used.
    received = cost.weight_bytes - cost.weight_bytes // users
    partials = cost.partial_bytes * (blocks + 1) // blocks + 200
    assert found.temp_bytes == received + partials - cost.outputs * 2
    assert found.interleaved_bytes == partials


def test_inference_knows_no_gradient():
    product = MatMul(m=128, k=768, n=768, weights_operand=True)
    assert [*lowered(forward_graph(product))] == ["forward"]
    training = steps(training_graph(product))
    assert {"transpose weights", "turn weights"} <= set(training["forward.data_gradient"])


def attention_scores(g: GraphBuilder, heads: int = 4, tokens: int = 128) -> str:
    query, key = (g.input(name, (2, heads, tokens, 64)) for name in ("query", "key"))
    return g.matmul("scores", query, key, transpose_b=True)


def test_a_matrix_is_added_to_a_product_where_that_lies():
    # 145 parts of the columns and 10 of the channels: 8 groups of channels, 205 columns, on a tile.
    wide = MatMul(m=600, k=64, n=30000, weights_operand=False)
    found = steps(forward_graph(wide))["add"]["scaled add"]
    assert found.vertex == "popops::ScaledAdd2D"
    assert found.compute_cycles == scaled_add_runs_cycles(
        Tile(CHIP, ERA_2_4), Runs(8 * 8 * 205, 8 * 205), "float16"
    )


def test_products_of_activations_have_passes_when_training():
    # Keys are turned for the gradient of the queries like the weights of a layer (PopART gives
    # both a fully connected pass); inference leaves them alone.
    product = MatMul(groups=8, m=128, k=64, n=128, weights_operand=False, transpose_b=True)
    training = steps(training_graph(product))
    assert "turn weights" in training["forward.data_gradient"]
    keys = 8 * 128 * 64
    turned = training["forward.data_gradient"]["turn weights"]
    assert turned.exchange_cycles >= keys * 2 / CHIP.tiles / CHIP.exchange_bytes_per_cycle
    g = GraphBuilder("attention")
    inference = steps(g.finish(attention_scores(g)).with_precision("16.16"))
    assert not {"transpose weights", "turn weights"} & set(inference["scores"])


def test_odd_sizes_are_turned_element_by_element():
    # Weights for all heads times values of 197 tokens: no group of tokens but of one divides them.
    def passes(tokens: int):
        product = MatMul(groups=96, m=tokens, k=tokens, n=64, weights_operand=False)
        return steps(training_graph(product))

    even, odd = passes(192), passes(197)
    assert "transpose weights" in even["forward.data_gradient"]
    assert "transpose weights" not in odd["forward.data_gradient"]
    # Pieces of one element, or of the 16 that sit together.
    for found, piece in ((odd, 2), (even, 32)):
        turned = found["forward.data_gradient"]["turn weights"]
        copies = rearranged_copy_cycles(turned.exchange_bytes, piece, CHIP)
        assert turned.copy_cycles == pytest.approx(copies, abs=1)
    # Tokens are summed over by the gradient of the values, where groups of their features and of
    # even tokens sit together.
    assert even["forward.weight_gradient"]["transpose B and A"].compute_cycles > 0
    assert {"transpose B", "rearrange A and B"} < set(odd["forward.weight_gradient"])


@pytest.mark.parametrize(("mask", "moved"), [((1, 1, 128, 128), True), ((2, 1, 1, 128), False)])
def test_a_mask_of_all_keys_and_queries_moves_to_the_scores(mask, moved):
    g = GraphBuilder("attention")
    y = g.elementwise("mask", "add", attention_scores(g), g.input("mask_input", mask))
    (step,) = steps(g.finish(y).with_precision("16.16"))["mask"].values()
    share = 2 * 4 * 128 * 128 * 2 / CHIP.tiles
    assert ("BinaryOp1D" in step.vertex) == moved
    assert (step.exchange_cycles >= share / CHIP.exchange_bytes_per_cycle / 2) == moved


@pytest.mark.parametrize(
    ("heads", "tokens", "stack", "laid_out"),
    [
        (5, 128, "sdk-2.4", True),  # a tenth of the scores
        (4, 128, "sdk-2.4", False),  # more than that
        (5, 126, "sdk-2.4", False),  # no whole groups of rows are found
        (5, 128, "sdk-1.0", False),  # as there was no such copy
    ],
)
def test_a_mask_is_laid_out_like_the_scores(heads, tokens, stack, laid_out):
    """ElementWise.cpp, regroupOperandIfBeneficial: rows sit together in scores, columns in it."""
    g = GraphBuilder("attention")
    scores, mask = attention_scores(g, heads, tokens), g.input("mask_input", (1, 1, tokens, tokens))
    graph = g.finish(g.elementwise("mask", "add", scores, mask)).with_precision("16.16")
    *before, add = lowered(graph, load_stack(stack))["mask"].steps
    assert [step.name for step in before] == ["lay out operand"] * laid_out
    moved = before[0] if laid_out else add
    share = (tokens if laid_out else 2 * heads * tokens) * tokens / CHIP.tiles
    assert share <= moved.exchange_bytes / 2 < share + 64
    assert moved.copy_cycles == rearranged_copy_cycles(moved.exchange_bytes, 2, CHIP)
    assert (add.copy_cycles == 0) == laid_out


@pytest.mark.parametrize(("stack", "regrouped"), [("sdk-2.4", True), ("sdk-2.0", False)])
def test_an_operand_with_other_neighbours_is_regrouped(stack, regrouped):
    """ElementWise.cpp, binaryOpGeneral: rows sit together in a product, not in what is spread."""
    g = GraphBuilder("residual")
    x = g.input("x", (512, 256))
    made = g.linear("fc", x, 256, bias=False)
    spread = g.copy("spread", g.linear("other", x, 256, bias=False))
    graph = g.finish(g.elementwise("add", "add", made, spread)).with_precision("16.16")
    *before, add = lowered(graph, load_stack(stack))["add"].steps
    assert [step.name for step in before] == ["regroup operand"] * regrouped
    assert add.exchange_bytes > 0
    pieces = rearranged_copy_cycles(add.exchange_bytes, 2, CHIP)
    assert add.copy_cycles == (0 if regrouped else pieces)


def test_a_product_brings_activations_of_another_operation_into_its_order():
    def layer(rows: int, *, made: bool, columns: int = 256):
        g = GraphBuilder("layer")
        x = g.input("x", (rows, 256))
        x = g.linear("before", x, columns) if made else x
        graph = g.finish(g.linear("fc", x, 1024)).with_precision("16.16")
        assert {op.transform for op in lowered(graph).values() if op.plan} == {"none"}
        return steps(graph)["fc"]

    own, made = layer(512, made=False), layer(512, made=True)
    # Rows sit together where columns are summed over: blocks are sent and transposed, then spread.
    assert [name for name in made if name not in own] == ["transpose A", "rearrange A"]
    assert made["multiply"] == own["multiply"]
    # 512 blocks of 16 x 16 become 1,024 of 8 x 16, which have a tile of their own each.
    assert made["transpose A"].exchange_bytes == made["rearrange A"].exchange_bytes == 8 * 16 * 2
    assert made["transpose A"].compute_cycles > 0 == made["rearrange A"].compute_cycles
    # An odd number of rows leaves no groups to transpose: each element is a piece of its own.
    odd = layer(509, made=True, columns=1024)
    assert "transpose A" not in odd
    moved = odd["rearrange A"]
    whole = moved.exchange_cycles + moved.copy_cycles
    assert whole == pytest.approx(5272 / 1024 * moved.exchange_bytes, rel=0.01)


def test_a_plan_that_swaps_the_operands_back_has_a_as_its_input():
    def product(*, made: str):
        g = GraphBuilder("product")
        a = g.input("a", (788, 256 if "A" in made else 768))
        b = g.input("b", (768, 768))
        a = g.linear("before", a, 768) if "A" in made else a
        b = g.linear("before", b, 768) if "B" in made else b
        graph = g.finish(g.matmul("product", a, b)).with_precision("16.16")
        assert "swap" in lowered(graph)["product"].transform
        return steps(graph)["product"]

    # Parts of A are wanted by 48 tiles each, those of B, which lie by rows, by five.
    assert "rearrange A" in product(made="A")
    assert not {"transpose B", "rearrange B"} & set(product(made="B"))


def test_columns_sit_together_in_what_a_swapped_product_made():
    def order(made: int):
        g = GraphBuilder("layers")
        x = g.linear("before", g.input("x", (788, made)), 768)
        graph = g.finish(g.linear("fc", x, 768)).with_precision("16.16")
        found = lowered(graph)
        swap = "swap" in found["before"].transform
        (moved,) = (step for step in found["fc"].steps if step.name.endswith(" A"))
        size = moved.exchange_bytes
        return swap, moved.copy_cycles == rearranged_copy_cycles(size, 16 * 2 if swap else 2, CHIP)

    # The product after it sums over columns, which are pieces of 16 where the plan swaps operands.
    # Of rows that sit together no groups are found: 788 are no multiple of 16.
    assert order(64) == (True, True)
    assert order(256) == (False, True)


def test_only_the_last_of_groups_that_are_not_whole_moves_one_by_one():
    g = GraphBuilder("layers")
    x = g.linear("before", g.input("x", (404, 32)), 204)
    graph = g.finish(g.linear("fc", x, 768)).with_precision("16.16")
    found = lowered(graph)
    assert ("swap" in found["before"].transform, found["before"].grouping) == (True, 8)
    (moved,) = (step for step in found["fc"].steps if step.name == "rearrange A")
    # Of 26 groups of eight columns the last has four.
    last = moved.exchange_bytes // 26
    whole = rearranged_copy_cycles(moved.exchange_bytes - last, 8 * 2, CHIP)
    assert moved.copy_cycles == whole + rearranged_copy_cycles(last, 2, CHIP)


def test_what_is_summed_over_is_padded_before_blocks_are_looked_for():
    def turned(tokens: int, features: int = 768):
        layer = MatMul(m=tokens, k=features, n=768, weights_operand=True)
        found = steps(training_graph(layer))["forward.weight_gradient"]
        return {name: step for name, step in found.items() if "transpose" in name}

    padded = regrouping(32 * 768, 16, 16, "float16", CHIP)
    assert padded != regrouping(24 * 768, 16, 16, "float16", CHIP)
    both, even = turned(24)["transpose B and A"], turned(32)["transpose B and A"]
    assert both.exchange_bytes == 2 * padded.received
    assert both.compute_cycles == even.compute_cycles == 2 * padded.cycles
    # Groups that are not whole are not found.
    assert list(turned(24, 1000)) == ["transpose B"]


@pytest.mark.parametrize(
    ("layer", "bytes_of_input", "bytes_of_weights"),
    [
        # A block of 16 x 16 halves, which some tiles share, lies on one of them; inputs, which hold
        # 16 together, on no more tiles than get 128 bytes each.
        (MatMul(m=8, k=1000, n=1000, weights_operand=True), 128, 16 * 16 * 2),
        # 80 rows by 16 columns are five blocks for three tiles; 43 columns by 80 rows are 215
        # groups for 48 tiles.
        (MatMul(m=768, k=768, n=128, weights_operand=True), 5 * 16 * 2, 2 * 16 * 16 * 2),
    ],
)
def test_operands_that_are_rearranged_lie_in_whole_blocks(layer, bytes_of_input, bytes_of_weights):
    found = steps(training_graph(layer))["forward.weight_gradient"]
    assert found["rearrange B and A"].exchange_bytes == bytes_of_input + bytes_of_weights


def test_groups_that_are_found():
    assert [found_group(16, size) for size in (768, 1000, 16, 4, 1)] == [16, 1, 16, 4, 1]
    assert found_group(8, 1000) == 8


def planned(op, **changes):
    ops = lowered(forward_graph(op), replace(load_stack("sdk-2.4"), **changes))
    (found,) = (one for one in ops.values() if one.plan)
    return found


def narrow(channels: int, field: int, before: int = 64, **changes) -> Conv:
    """A pointwise convolution of few channels."""
    return pointwise(in_channels=before, out_channels=channels, field=(field, field), **changes)


@pytest.mark.parametrize(
    ("op", "group", "piece"),
    [
        # 16 rows sit together, which do not divide 100; groups of 4 do.
        (MatMul(m=100, k=768, n=768, weights_operand=True), 4, 4),
        # Of 36 channels 8 sit together.
        (narrow(36, 5), 4, 4),
        # One sample is one of 8 channels of a plan that swaps: all of them lie by themselves.
        (narrow(144, 1, 6, batch=1), 16, 1),
        # 16 positions sit together, which do not divide 56.
        (narrow(200, 56, batch=1), 8, 1),
    ],
)
def test_a_result_without_neighbours_is_remapped(op, group, piece):
    found = planned(op)
    step = found.steps[-1]
    assert (step.name, found.grouping) == ("remap output", group)
    assert step.copy_cycles == rearranged_copy_cycles(step.exchange_bytes, piece * 2, CHIP)
    without = planned(op, remaps_outputs=False)
    assert without.steps == found.steps[:-1]
    assert without.tiles < found.tiles == CHIP.tiles


@pytest.mark.parametrize(
    "op",
    [
        MatMul(m=512, k=768, n=768, weights_operand=True),
        MatMul(m=1576, k=768, n=768, weights_operand=True),  # swaps: 16 columns sit together
        MatMul(groups=96, m=197, k=64, n=197, weights_operand=False),  # no group divides 197 rows
        narrow(24, 112, 16),
        narrow(810, 64),  # no group divides the channels
        narrow(200, 64, batch=1),  # swaps: 16 of 64 positions sit together
        conv(in_channels=144, out_channels=144, groups=144, field=(56, 56)),
    ],
)
def test_a_result_with_neighbours_stays_where_it_was_made(op):
    assert not {"remap output", "rearrange output"} & {step.name for step in planned(op).steps}


def test_positions_that_sit_together_are_turned_for_a_convolution():
    def second(before: int) -> dict[str, object]:
        g = GraphBuilder("convolutions")
        x = g.conv("first", g.input("x", (1, 64, 32, 32)), before, 1)
        graph = g.finish(g.conv("second", x, 64, 1)).with_precision("16.16")
        found = lowered(graph)
        return found["first"].transform, {step.name: step for step in found["second"].steps}

    transform, after_swap = second(810)
    assert transform == "swap, flatten 01"
    assert after_swap["regroup channels"].compute_cycles > 0
    assert second(64)[0] == "none"


def test_values_of_attention_lie_in_the_order_of_their_product():
    g = GraphBuilder("attention")
    x = g.linear("before", g.input("x", (2 * 128, 256)), 256)
    heads = g.transpose("first", g.reshape("split", x, (2, 128, 4, 64)), (0, 2, 1, 3))
    scores = g.matmul("scores", heads, heads, transpose_b=True)
    context = g.matmul("context", scores, heads)
    found = steps(g.finish(context).with_precision("16.16"))
    # Heads are a view. Queries and keys sum over features, the weights over keys: all lie by rows.
    assert not found["first"]
    assert "transpose B and A" in found["scores"]
    assert "transpose A" in found["context"]


@pytest.mark.parametrize(("precision", "joint"), [("32.32", True), ("16.16", False)])
def test_weights_take_a_gradient_of_a_joint_plan_where_it_lies(precision, joint):
    layer = MatMul(m=8, k=1000, n=1000, weights_operand=True)
    found = lowered(training_graph(layer, precision))
    assert (found["forward.weight_gradient"].transform == "joint") == joint
    (added,) = found["add"].steps
    assert (added.exchange_bytes == 0) == joint
