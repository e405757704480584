"""What the host can feed: instances against NUMA nodes, kinds of data, bad input."""

import math

import pytest
from hypothesis import given, strategies as st

import ipusim
from ipusim.errors import IpuSimError
from ipusim.machine import load_host, load_system
from ipusim.runtime.host.io import host_io
from ipusim.runtime.host.loader import DATASETS, LOADERS, host_feed
from ipusim.runtime.options.config import make_config

POD16 = load_system("IPU-POD16")
POD64 = load_system("IPU-POD64")
HOST = load_host("Dell R6525")


def rate(instances: int, **options) -> float:
    return host_feed(POD16, instances, "imagenet_jpeg", **options).items_per_s


def test_workers_on_nodes_of_their_own_add_up():
    one = HOST.decoded_images_per_s_per_core * HOST.worker_process_efficiency
    for instances in (1, 2, 4, 8):
        found = host_feed(POD16, instances, "imagenet_jpeg")
        assert found.bound and found.slowdown == 1
        assert found.items_per_s == pytest.approx(instances * 14 * one)


def test_the_recipe_fills_the_server():
    assert host_feed(POD16, 8, "imagenet_jpeg").processes == HOST.cores == 128


def test_more_instances_than_nodes_are_swapped_and_lose():
    shared = host_feed(POD16, 16, "imagenet_jpeg")
    assert not shared.bound
    assert shared.busy_cores <= HOST.cores
    assert shared.items_per_s < rate(8)
    assert shared.slowdown == pytest.approx(1 + 0.256 * 1.175)


def test_servers_grow_with_instances_within_what_is_published():
    assert host_feed(POD64, 8, "imagenet_jpeg").bound
    assert host_feed(POD64, 9, "imagenet_jpeg").bound  # on a second server
    assert host_feed(POD64, 32, "imagenet_jpeg").items_per_s == pytest.approx(4 * rate(8))
    assert not host_feed(POD64, 33, "imagenet_jpeg").bound
    assert not host_feed(POD64, 32, "imagenet_jpeg", servers=1).bound


def test_one_process_per_instance_passes_images_on():
    size = 602_112
    for instances in (1, 2, 8):
        limit = instances * HOST.loader_bytes_per_s / size
        many = {"workers_per_instance": 60, "item_bytes": size}
        assert rate(instances, **many) <= limit
        # Threads share their memory.
        assert rate(instances, loader="threads", **many) > limit
    for instances in (1, 2):
        both = rate(instances, workers_per_instance=60, item_bytes=size)
        assert both == pytest.approx(instances * 2.1e9 / size)
    assert rate(1, workers_per_instance=1, item_bytes=size) == rate(1, workers_per_instance=1)


def test_prepared_items_wait_for_swapped_processes():
    found = host_feed(POD16, 16, "prepared", workers_per_instance=4, item_s=1e-3)
    assert found.slowdown > 1
    assert found.items_per_s == pytest.approx(found.busy_cores / 1e-3 / found.slowdown)


def test_a_batch_is_prepared_in_two_passes_where_the_step_holds_that():
    graph = ipusim.zoo.resnet18().graph(1)
    io = host_io(graph, make_config(system="C2", host_dtype="float32"))
    copied = 2 * 3 * 224 * 224 * 4 / load_system("C2").host_core_bytes_per_s
    assert io.work_s == pytest.approx(2 * copied)


def test_buffers_beyond_the_cache_cost_a_third_pass():
    # Of five batches in flight three lie in buffers: 3 x 4.8 MB stay in 16 MiB, 4 would not.
    graph = ipusim.zoo.resnet18().graph(32)
    options = {"overlap_io": True, "host_dtype": "uint8", "instances": 1, "replicas": 1}
    copied = 32 * 3 * 224 * 224 / load_system("IPU-M2000").host_core_bytes_per_s
    for flight, passes in ((5, 2), (6, 3)):
        io = host_io(graph, make_config(batches_in_flight=flight, micro_batch=32, **options))
        assert io.sustained_s == pytest.approx(passes * copied)


def test_threads_need_no_passing_on():
    threads = host_feed(POD16, 8, "imagenet_jpeg", loader="threads")
    assert threads.items_per_s == pytest.approx(8 * 14 * HOST.decoded_images_per_s_per_core)
    assert host_feed(POD16, 1, "imagenet_jpeg", loader="threads").busy_cores == 126


def test_data_without_preparation_is_unlimited():
    assert host_feed(POD16, 1, "generated").items_per_s == math.inf
    assert host_feed(POD16, 16, "Tokens").items_per_s == math.inf


def test_memory_is_bound_by_copies():
    found = host_feed(POD16, 1, "memory", workers_per_instance=1, item_bytes=150_528)
    assert found.items_per_s == pytest.approx(POD16.host_core_bytes_per_s / (2 * 150_528))


def test_threads_that_call_python_run_as_many_at_once_as_stated():
    for workers in (1, 3):
        found = host_feed(
            POD16, 4, "prepared", item_s=2e-3, loader="threads", workers_per_instance=workers
        )
        assert found.items_per_s == pytest.approx(4 * workers / 2e-3)
        assert found.busy_cores == 4 * workers


@given(st.integers(1, 64), st.integers(1, 64), st.sampled_from(LOADERS))
def test_no_more_cores_work_than_there_are(instances, workers, loader):
    found = host_feed(
        POD16, instances, "imagenet_jpeg", workers_per_instance=workers, loader=loader
    )
    assert 0 < found.busy_cores <= HOST.cores
    assert 0 < found.items_per_s <= HOST.cores * HOST.decoded_images_per_s_per_core


@given(st.integers(1, 8), st.integers(1, 40))
def test_more_workers_never_feed_less_while_cores_are_free(instances, workers):
    if workers + 1 + HOST.service_processes <= HOST.cores_per_node:
        more = rate(instances, workers_per_instance=workers + 1)
        assert more > rate(instances, workers_per_instance=workers)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, "generated"), {}, "0 instances"),
        ((1, "generated"), {"workers_per_instance": 0}, "0 workers per instance"),
        ((1, "generated"), {"servers": 0}, "0 host servers"),
        ((1, "memory"), {}, "give item_bytes"),
        ((1, "memory"), {"item_bytes": 0}, "Items of 0 bytes"),
        ((1, "imagenet"), {}, "imagenet_jpeg"),
        ((1, "generated"), {"loader": "thread"}, "'threads'"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, options, message):
    with pytest.raises(IpuSimError) as caught:
        host_feed(POD16, *arguments, **options)
    text = str(caught.value)
    assert message in text and text.endswith((".", "?")) and "\n" not in text


def test_data_sets_are_named():
    assert DATASETS[0] == "imagenet_jpeg"
    assert set(DATASETS[1:]) == {"imagenet_ten_crops", "generated", "tokens", "memory", "prepared"}


def test_ten_crops_of_an_image_cost_what_the_sources_say():
    # Milliseconds of one core: decoding, colour jitter on most pixels, crop and resize, the last
    # two measured at twice the clock.
    pixels = 2 * 224**2 + 8 * 96**2
    jitter = 0.8 * pixels / (469 * 387) / 84
    resize = pixels / 512**2 / 668
    seconds = 1 / HOST.decoded_images_per_s_per_core + 4.5 / 2.25 * (jitter + resize)
    assert HOST.ten_crop_images_per_s_per_core == pytest.approx(1 / seconds, rel=0.01)
    crops = host_feed(POD16, 4, "imagenet_ten_crops")
    plain = host_feed(POD16, 4, "imagenet_jpeg")
    share = HOST.ten_crop_images_per_s_per_core / HOST.decoded_images_per_s_per_core
    assert crops.items_per_s == pytest.approx(plain.items_per_s * share)
    assert crops.busy_cores == plain.busy_cores
