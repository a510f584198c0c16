"""Which of the driver's error codes (Xids) take a GPU out of the market, and how the kernel log says them.

Sorted by NVIDIA's Xid catalogue: what an application can cause, what the driver has dealt with, and what only informs
leaves a card where it is. What needs a reset, a reboot or hands takes it out until somebody says that this was done.
"""

import re
from dataclasses import dataclass

RESET = "reset the GPU"
REPLACE = "reset the GPU; it needs service if this returns"

# Not here on purpose: 13, 31, 43, 45 and the like (the application's own fault), 63 and 92 (the memory has mended
# itself), 109 (a context that did not answer, which an application can bring about), 119's neighbours that only inform.
_FATAL: dict[int, tuple[str, str]] = {
    46: ("the GPU stopped processing", REPLACE),
    48: ("a memory error that could not be corrected", REPLACE),
    54: ("the board has no auxiliary power", "check its power cable"),
    62: ("the GPU's own controller has halted", RESET),
    64: ("a bad memory row could not be replaced", REPLACE),
    74: ("an NVLink error", "reset the GPU and check its links"),
    79: ("the GPU has fallen off the bus", "restart the machine; check power, cooling and the slot if this returns"),
    94: ("a contained memory error", REPLACE),
    95: ("an uncontained memory error", REPLACE),
    110: ("a security fault", REPLACE),
    119: ("the GPU's system processor did not answer", RESET),
    120: ("the GPU's system processor has failed", RESET),
    136: ("a link could not be trained", "reset the GPU and check its links"),
    140: ("a memory error that could not be corrected", REPLACE),
    143: ("the GPU could not be initialised", REPLACE),
    156: ("a part of the GPU was retired", RESET),
    158: ("the GPU timed out for good", RESET),
    167: ("the PCIe link timed out for good", "restart the machine; check the slot if this returns"),
    171: ("a memory error that could not be corrected", REPLACE),
    172: ("a memory error that could not be corrected", REPLACE),
}
# NVLink 5: the line itself says whether the link is lost. An event without a line does not, and takes nothing out.
_NVLINK5 = range(144, 151)
_SAYS_FATAL = re.compile(r"\bfatal\b", re.IGNORECASE)
_LINE = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)(?: [^)]*)?\): (\d+)(?:, (.*))?")


@dataclass(frozen=True)
class Xid:
    """One error code. `pci` as the kernel writes it ("0000:1b:00"); `text` is the rest of its line."""

    code: int
    pci: str = ""
    text: str = ""


def fault_of(xid: Xid) -> str:
    """Why a GPU with this error must not be leased and what to do about it; empty where it goes on."""
    if xid.code in _NVLINK5 and _SAYS_FATAL.search(xid.text):
        return f"Xid {xid.code}: an NVLink was lost; reset the GPU and check its links"
    if xid.code not in _FATAL:
        return ""
    what, remedy = _FATAL[xid.code]
    return f"Xid {xid.code}: {what}; {remedy}"


def parse_kernel_line(line: str) -> Xid | None:
    """The Xid in a line of the kernel log, None where there is none."""
    found = _LINE.search(line)
    return Xid(int(found[2]), found[1], found[3] or "") if found else None


def same_gpu(pci: str, bus_id: str) -> bool:
    """Whether the kernel's "0000:1b:00" and NVML's "00000000:1B:00.0" name one GPU."""
    return _place(pci) == _place(bus_id)


def _place(address: str) -> tuple[int, ...]:
    parts = address.partition(".")[0].split(":")
    try:
        return tuple(int(part, 16) for part in parts)
    except ValueError:
        return ()
