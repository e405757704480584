"""A run as Chrome trace JSON: what its format asks for, and the times of the report."""

import json
from collections import defaultdict
from itertools import pairwise

import pytest

import ipusim
from ipusim.errors import StudyError
from ipusim.report import trace

PIPELINE = {"mode": "training", "ipus_per_replica": 2, "gradient_accumulation": 8}
RUNS = {
    "one chip": {},
    "transfers beside": {"overlap_io": True, "batches_in_flight": 3},
    "stages in turn": {"ipus_per_replica": 2, "schedule": "sequential"},
    "stages at once": {"ipus_per_replica": 2, "schedule": "grouped"},
    "many micro-batches": {"mode": "training", "gradient_accumulation": 2 * trace.DRAWN},
    "pipeline": PIPELINE,
    "pipeline that does not wait for the host": PIPELINE | {"adopted": False},
    "long pipeline": PIPELINE | {"replicas": 2, "gradient_accumulation": 4 * trace.DRAWN},
    "interleaved": PIPELINE | {"ipus_per_replica": 4, "schedule": "interleaved"},
    "phases": {"mode": "training", "phases": 2},
}


def made(options, folder):
    report = ipusim.simulate("uno", system="IPU-M2000", micro_batch=4, **options)
    content = json.loads(report.to_perfetto(folder / "trace.json").read_text())
    return report, content["traceEvents"]


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_a_trace_has_the_form_that_perfetto_opens(options, tmp_path):
    report, events = made(options, tmp_path)
    named, lanes = set(), defaultdict(list)
    for event in events:
        assert event["ph"] in "MXC" and isinstance(event["pid"], int) and event["name"]
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
            if event["name"] == "thread_name":
                assert event["args"]["name"]
                named.add((event["pid"], event["tid"]))
        elif event["ph"] == "C":
            assert event["ts"] >= 0 and all(isinstance(n, int) for n in event["args"].values())
        else:
            assert event["ts"] >= 0 and event["dur"] > 0
            lanes[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
    assert set(lanes) <= named
    for spans in lanes.values():
        # Spans of a lane that overlap without nesting are not drawn where they belong.
        for (start, length), (later, _) in pairwise(sorted(spans)):
            assert start + length <= later * (1 + 1e-9) + 1e-6
    step = [
        start + length for (pid, _), spans in lanes.items() if pid == 1 for start, length in spans
    ]
    assert max(step) == pytest.approx(1e6 * report.result.step_s)


def lanes_of(events):
    return {
        event["args"]["name"]: event["tid"]
        for event in events
        if event["name"] == "thread_name" and event["pid"] == 1
    }


def test_a_pipeline_shows_every_micro_batch_on_every_stage(tmp_path):
    report, events = made(RUNS["pipeline"], tmp_path)
    lanes = lanes_of(events)
    assert list(lanes)[3:] == ["stage 0 on IPU 0", "stage 1 on IPU 1", "weight update"]
    for stage in (0, 1):
        tid = lanes[f"stage {stage} on IPU {stage}"]
        seen = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (1, tid)]
        want = {f"{way} of micro-batch {k}" for way in ("forward", "backward") for k in range(8)}
        assert {event["name"] for event in seen} == want and len(seen) == 16
        busy = sum(event["dur"] for event in seen if event["name"].startswith("forward"))
        assert busy >= 8e6 * report.result.stages[stage].forward_s * (1 - 1e-9)
    (update,) = [e for e in events if e["ph"] == "X" and e["name"] == "weight update"]
    assert update["dur"] == pytest.approx(1e6 * report.result.parts_s["weight update"])


def test_supersteps_and_memory_are_those_of_the_report(tmp_path):
    report, events = made(RUNS["one chip"], tmp_path)
    spans = [event for event in events if event["ph"] == "X" and event["pid"] == 2]
    assert len(spans) == len(report.trace)
    counted = [event for event in events if event["ph"] == "C"]
    assert max(sum(event["args"].values()) for event in counted) == report.used_tile_bytes
    with pytest.raises(StudyError, match=r"Cannot write .*a\.json"):
        report.to_perfetto(tmp_path / "trace.json" / "a.json")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_what_does_not_fit_has_no_step(tmp_path):
    report = ipusim.simulate("resnet18", system="C2", micro_batch=256)
    assert not report.fits
    assert {event["pid"] for event in trace.events(report)} == {2}
