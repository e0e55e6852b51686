"""Where the ranks of a group find each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hotshoe.lazy import resolve_lazy


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of a group find each other.

    Attributes:
        directory: On this host, private to this user, empty at first, the same for all ranks.
        rank: This rank's number, 0 <= rank < size.
        timeout_s: How long a rank waits for another one, here and in each operation.
        address: Of ranks that are on several hosts, `HOST:PORT` of a key-value store of PyTorch
            (`TCPStore`) where they meet instead; "" for those of one host.
        name: Of this group in that store.
        hosts: By rank, a number that is equal for ranks of one host; empty where all are.
    """

    directory: str
    rank: int
    size: int
    timeout_s: float
    address: str = ""
    name: str = ""
    hosts: tuple[int, ...] = ()

    def among(self, ranks: Sequence[int], rank: int, name: str) -> Rendezvous:
        """Return where some of the ranks meet.

        Args:
            ranks: Their numbers in this group.
            rank: This rank's place among them.
            name: Of the group, and of the folder in which it meets if it is on one host.
        """
        hosts = tuple(self.hosts[r] for r in ranks) if self.hosts else ()
        address = self.address if len(set(hosts)) > 1 else ""
        folder = f"{self.directory}/{name}"
        return Rendezvous(folder, rank, len(ranks), self.timeout_s, address, name, hosts)

    def open_store(self, name: str) -> Any:
        """Return the store in which the ranks of this group meet, for process groups of PyTorch.

        Args:
            name: Of the library that uses it.

        Raises:
            RuntimeError: Nobody has a store at the address.
        """
        store = resolve_lazy("hotshoe.slots.reference.communicator:open_store")
        return store(self, name)


def even_sizes(num_rows: int, size: int) -> list[int]:
    """Return equal pieces of rows, one for each rank.

    Raises:
        ValueError: They do not come out even; give sizes then.
    """
    rows, rest = divmod(num_rows, size)
    if rest:
        raise ValueError(f"{num_rows} rows do not divide among {size} ranks; give sizes")
    return [rows] * size
