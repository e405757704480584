"""The hardware description: what the sources say, and what happens when a file is broken."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ipusim import files, machine
from ipusim.errors import ConfigError, DataError, UnknownNameError
from ipusim.machine import constants as catalogue
from ipusim.machine.interconnect import copy_s, sync_s


# Peaks and bandwidths that the makers state or others measured (Jia et al. 2019; Graphcore 2022).
@pytest.mark.parametrize(
    ("name", "dtype", "partials", "tflops"),
    [
        ("GC2", "float16", "float16", 124.5),
        ("GC2", "float16", "float32", 124.5),
        ("GC2", "float32", "float32", 31.1),
        ("GC200", "float16", "float16", 250),
        ("GC200", "float16", "float32", 125),
        ("GC200", "float32", "float32", 62.5),
        ("Bow", "float16", "float16", 350),
        ("Bow", "float32", "float32", 87),
    ],
)
def test_peak_compute(name: str, dtype: str, partials: str, tflops: float) -> None:
    chip = machine.load_chip(name)
    assert chip.peak_flops_per_s(dtype, partials) / 1e12 == pytest.approx(tflops, rel=0.005)


@pytest.mark.parametrize(
    ("name", "sram_mib", "sram_tb_s", "exchange_tb_s"),
    [("GC2", 304, 45, 7.78), ("GC200", 897, 47.5, 7.83), ("Bow", 897, 65.4, 10.9)],
)
def test_memory_and_exchange(
    name: str, sram_mib: int, sram_tb_s: float, exchange_tb_s: float
) -> None:
    chip = machine.load_chip(name)
    assert chip.sram_bytes == sram_mib * 2**20
    assert chip.sram_bytes_per_s / 1e12 == pytest.approx(sram_tb_s, rel=0.04)
    assert chip.exchange_bytes_per_s / 1e12 == pytest.approx(exchange_tb_s, rel=0.005)


def test_measured_exchange_stays_below_the_bus() -> None:
    measured_bytes_per_s = 7679.01e9  # Jia et al. 2019, 1,216 concurrent transfers on chip
    bus = machine.load_chip("GC2").exchange_bytes_per_s
    assert 0.98 < measured_bytes_per_s / bus <= 1


@pytest.mark.parametrize("name", machine.chip_names())
def test_chip_is_consistent(name: str) -> None:
    chip = machine.load_chip(name)
    assert chip.tiles % (4 * chip.tile_columns) == 0
    assert 0 < chip.interleaved_offset_bytes < chip.bytes_per_tile
    assert chip.interleaved_offset_bytes % chip.memory_element_bytes == 0
    assert chip.bytes_per_tile % chip.memory_element_bytes == 0
    facts = machine.hardware_table().set_index(["subject", "name"])["value"]
    assert chip.workers * facts[name, "conv_unit_pipeline_depth"] == 24
    assert chip.seconds(chip.clock_hz) == 1.0
    assert chip == machine.load_chip(name.lower())
    assert hash(chip) == hash(machine.load_chip(name.upper()))


def test_impossible_conv_mode_is_refused() -> None:
    chip = machine.load_chip("Bow")
    with pytest.raises(ConfigError, match="float32"):
        chip.peak_flops_per_s("float32", "float16")
    with pytest.raises(ConfigError, match="int8"):
        chip.macs_per_cycle("int8", "float16")


@pytest.mark.parametrize(
    ("name", "chip", "ipus", "machines"),
    [
        ("C2", "GC2", 2, 1),
        ("IPU-M2000", "GC200", 4, 1),
        ("Bow-2000", "Bow", 4, 1),
        ("IPU-POD16", "GC200", 16, 4),
        ("IPU-POD64", "GC200", 64, 16),
        ("IPU-POD128", "GC200", 128, 32),
        ("IPU-POD256", "GC200", 256, 64),
        ("Bow Pod16", "Bow", 16, 4),
        ("Bow Pod32", "Bow", 32, 8),
        ("Bow Pod64", "Bow", 64, 16),
        ("Bow Pod128", "Bow", 128, 32),
        ("Bow Pod256", "Bow", 256, 64),
        ("Bow Pod1024", "Bow", 1024, 256),
        ("Good computer", "Bow", 8192, 2048),
    ],
)
def test_systems(name: str, chip: str, ipus: int, machines: int) -> None:
    system = machine.load_system(name)
    assert (system.chip.name, system.ipus, system.machines) == (chip, ipus, machines)


@pytest.mark.parametrize("name", machine.system_names())
def test_system_is_consistent(name: str) -> None:
    system = machine.load_system(name)
    assert system.ipus % system.ipus_per_machine == 0
    assert system.ipus % system.ipu_link_domain_ipus == 0
    assert 1 <= system.host_servers <= system.host_servers_max <= system.machines
    rails = 2 * system.rail_links
    assert system.pair_links + rails <= system.chip.ipu_links
    assert (rails > 0) == (system.topology != "pair")
    assert system.host_link_bytes_per_s_per_ipu <= system.host_link_bytes_per_s_per_machine
    assert system.power.chip == system.chip.name
    digits = "".join(character for character in name if character.isdigit())
    if "pod" in name.lower():
        assert system.ipus == int(digits)


def test_good_computer_is_labelled_a_stand_in() -> None:
    good = machine.load_system("good computer")
    assert good.constants["chip"].label == "assumed"
    announced = machine.hardware_table().set_index(["subject", "name"]).loc["Good computer"]
    assert announced.loc["announced_flops_per_s", "value"] == 10e18
    memory = good.machines * good.streaming_memory_bytes_per_machine
    assert memory == pytest.approx(4e15)


@pytest.mark.parametrize("name", machine.names(machine.Host))
def test_host_is_consistent(name: str) -> None:
    host = machine.load(machine.Host, name)
    assert host.cores % host.numa_nodes == 0
    assert host.remote_distance >= 1
    assert 0 <= host.memory_stall_share < 1
    assert 0 < host.worker_process_efficiency <= 1
    assert host.swapping_slowdown >= 1
    assert set(host.constants) == set(machine.load(machine.Host, "R6525").constants)


def test_tamu_server() -> None:
    host = machine.load_system("IPU-POD16").host
    assert (host.name, host.numa_nodes, host.cores_per_node) == ("Dell R6525", 8, 16)


def test_c2_host_link_is_the_measured_one() -> None:
    card = machine.load_system("C2")
    assert card.host_bytes_per_s(1) == 5.86e9
    assert card.host_bytes_per_s(2) == pytest.approx(11.35e9 / 2)
    assert card.host_link_latency_s == pytest.approx(9.87e-6)


def test_network_card_is_shared_by_the_machine() -> None:
    pod = machine.load_system("IPU-POD16")
    assert pod.host_bytes_per_s(1) == 12.5e9
    assert pod.host_bytes_per_s(4) == pod.host_bytes_per_s(16) == 12.5e9 / 4


@pytest.mark.parametrize("ipus", [0, -1, 17])
def test_host_link_refuses_impossible_counts(ipus: int) -> None:
    with pytest.raises(ConfigError, match=f"{ipus} IPUs.*1 to 16"):
        machine.load_system("IPU-POD16").host_bytes_per_s(ipus)


# Measured over IPU-Links of C2 cards in one direction (Jia et al. 2019).
@pytest.mark.parametrize(("links", "measured_gb_s"), [(4, 55.0), (2, 27.72)])
def test_ipu_links_reach_what_was_measured(links: int, measured_gb_s: float) -> None:
    link = machine.load(machine.Link, "IPU-Link Mk1")
    assert links * link.effective_bytes_per_s / 1e9 == pytest.approx(measured_gb_s, rel=0.02)


@pytest.mark.parametrize(("ipus", "hops"), [(1, 0), (2, 1), (4, 2), (16, 5), (64, 17)])
def test_sync_hops(ipus: int, hops: int) -> None:
    assert machine.sync_hops(ipus) == hops


def test_sync_time_of_a_pod() -> None:
    pod = machine.load_system("IPU-POD64")
    assert sync_s(pod, 64) == pytest.approx(2 * 17 * 15e-9)
    assert sync_s(pod, 1) == pod.chip.seconds(pod.chip.global_sync_cycles) < sync_s(pod, 64)
    with pytest.raises(ConfigError, match="0 IPUs"):
        machine.sync_hops(0)


@pytest.mark.parametrize("name", ["C2", "IPU-M2000", "IPU-POD16", "IPU-POD64"])
def test_copies_take_the_shortest_way_of_the_ladder(name: str) -> None:
    system = machine.load_system(name)
    rails = system.ipu_link_domain_ipus // 2
    closed = system.topology == "torus"
    for source, target in itertools.permutations(range(system.ipu_link_domain_ipus), 2):
        up = (target // 2 - source // 2) % rails
        down = (source // 2 - target // 2) % rails
        along = min(up, down) if closed else abs(target // 2 - source // 2)
        hops = along + (source % 2 != target % 2)
        empty_s = copy_s(system, source, target, 0)
        assert empty_s == pytest.approx(hops * system.ipu_link.latency_s)
        links = system.rail_links if along else system.pair_links
        data_s = 10**9 / (links * system.ipu_link.effective_bytes_per_s)
        assert copy_s(system, source, target, 10**9) == pytest.approx(empty_s + data_s)


def test_machines_that_are_partly_filled_count_whole(tmp_path: Path) -> None:
    path = tmp_path / "part.toml"
    path.write_text("[systems.Part]\nlike = 'IPU-M2000'\nipus = 5")
    assert machine.load_system(str(path)).machines == 2


def test_idle_card_draws_what_was_sampled() -> None:
    card = machine.load_system("C2")
    idle_w = card.power.card_w + card.ipus * card.power.static_w_per_ipu
    assert 107 <= idle_w <= 114


@pytest.mark.parametrize(
    ("kind", "given_name", "nearest"),
    [
        (machine.Chip, "GC20", "GC2"),
        (machine.System, "Bow Pod17", "Bow Pod16"),
        (machine.Link, "GW-Lnk", "GW-Link"),
        (machine.PowerConstants, "Boww", "Bow"),
        (machine.Host, "Dell R652", "Dell R6525"),
    ],
)
def test_unknown_names(kind: type, given_name: str, nearest: str) -> None:
    with pytest.raises(UnknownNameError, match=f"{given_name}.*{nearest}"):
        machine.load(kind, given_name)


def test_every_constant_has_unit_source_and_label() -> None:
    table = machine.hardware_table()
    assert list(table.columns) == ["file", "subject", "name", "value", "unit", "source", "label"]
    assert set(table["label"]) <= set(catalogue.LABELS)
    assert (table[["unit", "source"]].map(len) > 0).all(axis=None)
    assert not table.duplicated(["file", "subject", "name"]).any()
    assert set(machine.system_names()) | set(machine.chip_names()) <= set(table["subject"])


def test_nothing_claims_a_source_and_denies_it() -> None:
    table = machine.hardware_table()
    unsourced = table[table["source"].str.contains("no source found")]
    assert len(unsourced)
    assert set(unsourced["label"]) == {"assumed"}


DAMAGE = {
    "not TOML": (lambda text: text.replace("[GC2]", "[GC2", 1), "chips.toml is not valid TOML"),
    "missing table": (lambda text: text[: text.index("[Bow]")], "'Bow'"),
    "missing key": (lambda text: text.replace("\nclock_hz", "\nclock"), "'clock_hz' of 'Bow'"),
    "wrong unit": (lambda text: text.replace('"Hz"', '"MHz"'), "'clock_hz'.*'MHz'.*'Hz'"),
    "no label": (lambda text: text.replace('label = "derived", ', ""), "no 'label'"),
    "bad label": (lambda text: text.replace('"derived"', '"certain"'), "'certain'"),
    "no source": (lambda text: text.replace("source = ", "origin = "), "no 'source'"),
    "text for a number": (lambda text: text.replace("value = 1216,", 'value = "1216",'), "'1216'"),
    "negative": (lambda text: text.replace("value = 1216,", "value = -1216,"), "-1216"),
    "not finite": (lambda text: text.replace("value = 1216,", "value = nan,"), "'tiles'"),
    "like one below": (
        lambda text: text.replace('like = "GC200"', 'like = "C600 IPU"', 1),
        "'Bow' in hardware/chips.toml is like 'C600 IPU': name a table above it",
    ),
    "like itself": (
        lambda text: text.replace('like = "GC200"', 'like = "Bow"', 1),
        "'Bow' in hardware/chips.toml is like 'Bow': name a table above it",
    ),
    "bare value": (
        lambda text: text.replace("\nclock_hz = {", "\nclock_hz = 5\nold = {"),
        "'clock_hz' of 'Bow' in hardware/chips.toml must be a table",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_file_is_named_in_one_sentence(damage: str, own_data: Path) -> None:
    change, expected = DAMAGE[damage]
    file = own_data / "hardware" / "chips.toml"
    original = file.read_text()
    damaged = change(original)
    assert damaged != original, "the damage did not take"
    file.write_text(damaged)
    with pytest.raises((DataError, UnknownNameError), match=expected) as caught:
        machine.load_chip("Bow")
        machine.load_chip("GC2")
    assert "\n" not in str(caught.value)


def test_missing_file_is_named(own_data: Path) -> None:
    (own_data / "hardware" / "links.toml").unlink()
    with pytest.raises(DataError, match=r"hardware/links\.toml cannot be read"):
        machine.load_system("C2")


def test_binary_rubbish_is_named(own_data: Path) -> None:
    (own_data / "hardware" / "power.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"hardware/power\.toml is not valid TOML"):
        machine.load(machine.PowerConstants, "GC2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(machine.Sourced, file="f", word="stack"):
    name: str
    title: str
    era: int
    folds: bool
    words: tuple[str, ...]


TABLE = {
    "era": '{ value = 2, source = "[S] code" }',
    "folds": '{ value = true, source = "[A] seen" }',
    "words": '{ value = ["a", "b"], source = "[S] docs" }',
    "unknown": '"not asked for"',
}


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Profile]:
    monkeypatch.setenv(files.DATA_DIR_VARIABLE, str(tmp_path))

    def load(**entries: str | None) -> Profile:
        table = TABLE | entries
        lines = [f"{key} = {entry}" for key, entry in table.items() if entry is not None]
        (tmp_path / "f.toml").write_text("\n".join(["[sdk-1]", *lines]), encoding="utf-8")
        return machine.load(Profile, "SDK 1")

    return load


def test_values_come_with_their_sources(profile: Callable[..., Profile]) -> None:
    found = profile()
    assert (found.name, found.title) == ("sdk-1", "sdk-1")
    assert (found.era, found.folds, found.words) == (2, True, ("a", "b"))
    sources = {key: one.source for key, one in found.constants.items()}
    assert sources == {"era": "[S] code", "folds": "[A] seen", "words": "[S] docs"}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (None, "is missing"),
        ("2", "must be a table with value, source"),
        ("{ value = 2 }", "has no 'source'"),
        ('{ value = 2, source = "" }', "has an empty or non-text 'source'"),
        ('{ source = "[S] code" }', "has no 'value'"),
        # A truth value is an integer to Python, but not to a reader of the file.
        ('{ value = true, source = "s" }', "has the value True: use a value of type int"),
        ('{ value = 2.0, source = "s" }', r"has the value 2\.0: use a value of type int"),
    ],
)
def test_a_damaged_property_is_named(
    profile: Callable[..., Profile], entry: str | None, says: str
) -> None:
    with pytest.raises(DataError, match=f"^The key 'era' of 'sdk-1' in f.toml {says}"):
        profile(era=entry)


def test_missing_data_folder_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(files.DATA_DIR_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=files.DATA_DIR_VARIABLE):
        machine.load_chip("GC2")


def test_incomplete_install_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "_PACKAGE", tmp_path / "site-packages" / "ipusim")
    with pytest.raises(DataError, match="'notebooks'.*reinstall"):
        files.notebooks_dir()


def test_the_same_in_every_process() -> None:
    code = "import ipusim.machine as m; print(m.hardware_table().to_csv(index=False))"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(files.__file__).parents[1])},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


MINE = """
[systems."Fast cards"]
like = "IPU-M2000"
chip = "Fast"
ipus = 8

[chips.Fast]
like = "GC200"
clock_hz = 1_500_000_000
"""


def test_a_user_describes_a_machine_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    system = machine.load_system(str(path))
    assert (system.name, system.ipus, system.chip.clock_hz) == ("Fast cards", 8, 1_500_000_000)
    assert system.chip.tiles == machine.load_chip("GC200").tiles
    assert system.chip.constants["clock_hz"].source == str(path)
    power = machine.load_system("IPU-M2000").power
    assert system.power.amp_half_pj_per_flop == power.amp_half_pj_per_flop


def test_a_table_of_the_hardware_may_be_copied_whole(tmp_path: Path) -> None:
    chips = (files.data_dir() / "hardware" / "chips.toml").read_text()
    copied = chips[chips.index("[GC200]") : chips.index("[Bow]")].replace("[GC200]", "[chips.Copy]")
    path = tmp_path / "copy.toml"
    path.write_text(
        f'[systems.X]\nlike = "C2"\nchip = "Copy"\n[power.Copy]\nlike = "GC200"\n{copied}'
    )
    assert machine.load_system(str(path)).chip == replace(machine.load_chip("GC200"), name="Copy")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must describe one system"),
        ("x = [", "cannot be read"),
        ("[system]\nipus = 2", "did you mean 'systems'"),
        ("[systems]\nipus = 2", r"write \[systems.NAME\]"),
        ("[systems.X]\nipus = 2", "The key 'chip' of 'X'"),
        ("[systems.X]\nlike = 'C2'\nipuss = 2", "did you mean 'ipus'"),
        ("[systems.X]\nlike = 'C2'\nipus = 'two'", "use a value of type int"),
        ("[systems.X]\nlike = 'C2'\nipus = 0", "use a number above 0"),
        ("[systems.X]\nlike = 'C2'\ntopology = 'ring'", "did you mean 'pair'"),
        ("[systems.X]\nlike = 'C2'\nchip = 'Fast'", "Fast"),
    ],
)
def test_a_bad_machine_file_gets_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises((ConfigError, DataError, UnknownNameError), match=message) as caught:
        machine.load_system(str(path))
    assert "\n" not in str(caught.value)


def test_a_machine_file_that_need_not_end_is_not_read(tmp_path: Path) -> None:
    pipe, long = tmp_path / "pipe.toml", tmp_path / "long.toml"
    os.mkfifo(pipe)
    long.write_bytes(b"#" * 2**21)
    for path, why in ((pipe, "it is no regular file"), (long, "2097152 bytes, where 1048576")):
        with pytest.raises(ConfigError, match=f"cannot be read: .*{why}"):
            machine.load_system(str(path))


def test_the_c600_card_has_the_peak_that_was_announced() -> None:
    system = machine.load_system("C600")
    assert system.ipus == 1 and system.machine_rated_w == 185
    assert system.chip.peak_flops_per_s() / 1e12 == pytest.approx(280, rel=0.001)
    assert system.chip.peak_flops_per_s("float8") / 1e12 == pytest.approx(560, rel=0.001)
    with pytest.raises(ConfigError, match="no conv unit on GC200"):
        machine.load_chip("GC200").macs_per_cycle("float8")
