"""One system: how many chips of which kind, in which machines, joined and fed by which links."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from ipusim.errors import ConfigError, check_name, why
from ipusim.files import check_file
from ipusim.machine.chip import Chip
from ipusim.machine.constants import Own, Sourced, constant, described, load, names
from ipusim.machine.parts import Host, Link, PowerConstants

TOPOLOGIES = ("pair", "ladder", "torus")
OWN_FILES = ("systems", "chips", "power", "links", "hosts")
"""What a user's file may describe."""

_MOST_BYTES = 2**20
"""Of a user's file: all machines of data/hardware have a tenth of it."""


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class System(Sourced, file="hardware/systems", word="system"):
    """A card, a machine or a pod, by a name of `system_names`; ``constants`` have their sources."""

    name: str
    chip: Chip = constant("-", "The chip that it is made of.")
    ipus: int = constant("IPUs", "Chips in all.")
    ipus_per_machine: int = constant("IPUs", "Chips of a card or machine.")
    topology: str = constant("-", 'How IPU-Links join the chips: "pair", "ladder", "torus".')
    ipu_link: Link = constant("-", "One IPU-Link.")
    pair_links: int = constant(
        "links", "IPU-Links between the two chips of a pair, a rung of the ladder."
    )
    rail_links: int = constant(
        "links",
        "IPU-Links between a chip and the next rung on its side, one way along the rail.",
        zero=True,
    )
    ipu_link_domain_ipus: int = constant(
        "IPUs",
        "Chips that reach each other over IPU-Links alone; beyond it traffic takes GW-Links.",
    )
    gw_link: Link = constant("-", "One GW-Link.")
    gw_links_per_machine: int = constant(
        "links", "GW-Links of a machine, 0 where there are none.", zero=True
    )
    host_link_bytes_per_s_per_ipu: float = constant(
        "B/s", "Host bandwidth in one direction that one chip alone can reach."
    )
    host_link_bytes_per_s_per_machine: float = constant(
        "B/s", "That which the chips of a card or machine share."
    )
    host_link_latency_s: float = constant("s", "Time of an empty host transfer.")
    buffer_link_bytes_per_s_per_ipu: float = constant(
        "B/s", "Rate of one chip reading what the host put into the machine's buffer beforehand."
    )
    host_servers: int = constant("servers", "Smallest number of hosts that it is sold with.")
    host_servers_max: int = constant("servers", "The largest.")
    host: Host = constant("-", "One of them.")
    streaming_memory_bytes_per_machine: float = constant(
        "B", "Off-chip memory of a machine, 0 where there is none.", zero=True
    )
    machine_rated_w: float = constant("W", "Rated power of a card or machine.")
    default_stack: str = constant(
        "-", "Software stack that a simulation uses unless told otherwise."
    )
    power: PowerConstants = constant("-", "Power constants of its chip.", key="chip")

    @property
    def machines(self) -> int:
        """Cards or machines in the system."""
        return -(-self.ipus // self.ipus_per_machine)

    def host_bytes_per_s(self, active_ipus: int) -> float:
        """Return bytes per second and direction of each chip, on as few machines as hold them."""
        if not 1 <= active_ipus <= self.ipus:
            raise ConfigError(
                f"{active_ipus} IPUs were asked for on {self.name}: use 1 to {self.ipus}."
            )
        sharing = min(active_ipus, self.ipus_per_machine)
        return min(
            self.host_link_bytes_per_s_per_ipu,
            self.host_link_bytes_per_s_per_machine / sharing,
        )


def system_names() -> tuple[str, ...]:
    """Return the names of all systems, in file order.

    Examples
    --------
    >>> ipusim.system_names()[:3]
    ('C2', 'IPU-M2000', 'Bow-2000')
    """
    return names(System)


def load_system(name: str, *, adopted: bool = True) -> System:
    """Return one system.

    Parameters
    ----------
    name : str
        Its name, in any case, with or without spaces and hyphens, or the path of a file that ends
        in .toml: a machine of the user's own.
    adopted : bool
        If false, values are those without the decisions that were taken after seeing residuals
        (data/adopted.csv).

    Returns
    -------
    System
        With the values of data/hardware.

    Raises
    ------
    UnknownNameError
        If there is no such system.
    DataError
        If a data file is missing or corrupt.
    ConfigError
        If the user's file cannot be read, or does not describe one system.

    Notes
    -----
    A user's file holds tables as data/hardware does, under the names of its files: one
    ``[systems.NAME]``, and what it is made of that is new: ``[chips.NAME]``, ``[power.NAME]`` (by
    the name of the chip), ``[links.NAME]``, ``[hosts.NAME]``. A table may take what it leaves out
    from another (``like = "IPU-M2000"``), and a bare number has the unit of its key.

    Examples
    --------
    >>> system = ipusim.load_system("ipu-pod 16")
    >>> system.ipus, system.chip.name, system.machines
    (16, 'GC200', 4)
    """
    if str(name).lower().endswith(".toml"):
        return _own_system(str(name), adopted)
    return load(System, name, adopted=adopted)


def _own_system(path: str, adopted: bool) -> System:
    """Return the system of a user's file."""
    try:
        check_file(Path(path), _MOST_BYTES)
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"The machine file {path!r} cannot be read: {why(error)}.") from error
    for stem, named in tables.items():
        check_name(f"kind of table in {path!r}", stem, OWN_FILES)
        if not isinstance(named, dict) or not all(isinstance(one, dict) for one in named.values()):
            raise ConfigError(f"The tables of {path!r} have names: write [{stem}.NAME].")
    own = list(tables.get("systems", {}))
    if len(own) != 1:
        raise ConfigError(f"{path!r} must describe one system, but holds {len(own)}: keep one.")
    for chip, table in tables.get("chips", {}).items():
        if "like" in table:
            tables.setdefault("power", {}).setdefault(chip, {"like": table["like"]})
    system = load(System, own[0], Own(path, tables), adopted=adopted)
    check_name("topology", system.topology, TOPOLOGIES)
    return system
