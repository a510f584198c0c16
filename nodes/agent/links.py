"""The wire between a holder's network namespace and the node: one veth pair, a /30, routed and never bridged.

A lease sees its own end and the node's, and nobody else's frames. The rules of nodes.agent.network hold for the node's
end by its name.
"""

import fcntl
import ipaddress
import socket
import struct
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any

from nodes.agent import netlink
from nodes.agent.failures import AgentError
from nodes.agent.namespaces import inside
from nodes.agent.network import HOLDER_PREFIX

INSIDE = "eth0"
PREFIX_LENGTH = 30
LARGEST_MTU = 1500
LARGEST_PREFIX = 24  # 64 holders, some of them waiting
# Looked at in this order; the first that no route of this machine overlaps is used. All lie in ranges that leases
# cannot reach.
RANGES = tuple(IPv4Network(net) for net in ("10.231.0.0/16", "172.29.0.0/16", "192.168.128.0/17", "100.127.0.0/16"))
SIOCGIFFLAGS, SIOCGIFADDR, SIOCGIFMTU = 0x8913, 0x8915, 0x8921

# Without them a root process in a lease could not listen on port 80 or ping: the engine sets both for its own networks.
SYSCTLS_INSIDE = (
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
    ("ipv6/conf/lo/disable_ipv6", "0"),  # programs that listen on ::1 go on working
    ("ipv4/ip_unprivileged_port_start", "0"),
    ("ipv4/ping_group_range", "0 2147483647"),
)
# For the node's end: no IPv6, no answer about the node's other addresses, no packet from an address that is not there.
SYSCTLS_OUTSIDE = (
    ("ipv6/conf/{}/disable_ipv6", "1"),
    ("ipv4/conf/{}/arp_ignore", "1"),
    ("ipv4/conf/{}/rp_filter", "1"),
    ("ipv4/conf/{}/accept_redirects", "0"),
    ("ipv4/conf/{}/send_redirects", "0"),
    ("ipv4/conf/{}/forwarding", "1"),
)
PROC_NET = Path("/proc/sys/net")


def connect(pid: int, interface: str, address: IPv4Interface) -> None:
    """Join the namespace of process `pid`, which gets `address` on eth0, to the node, whose end is `interface`.

    Raises:
        OSError: the kernel refused; what was made is gone with the namespace, or with `disconnect`.
    """
    outer = IPv4Interface((int(address.network.network_address) + 1, address.network.prefixlen))
    netlink.create_pair(interface, INSIDE, pid, default_mtu())
    inside(pid, "net", lambda: _set_up_inside(address, outer))
    for path, value in SYSCTLS_OUTSIDE:
        _write(path.format(interface), value)
    netlink.add_address(interface, outer)
    netlink.set_up(interface)  # last: an end that is up belongs to a holder that is complete


def disconnect(interface: str) -> None:
    """Delete both ends; a pair that is not there is a success."""
    netlink.delete(interface)


def address_of(pid: int) -> IPv4Interface | None:
    """The address of eth0 in the namespace of a process; None when it has none."""
    try:
        packed = inside(pid, "net", lambda: _ask_interface(SIOCGIFADDR, INSIDE, "4x4s"))
    except OSError:
        return None
    return IPv4Interface((packed, PREFIX_LENGTH))


def is_connected(interface: str) -> bool:
    """Whether the node's end is there and was brought up."""
    try:
        return bool(_ask_interface(SIOCGIFFLAGS, interface, "H") & netlink.UP)
    except OSError:
        return False


def keep_range(record: Path, wanted: str) -> IPv4Network | None:
    """The addresses of this node's holders: `wanted`, else those that `record` remembers as long as they are free here,
    else the first of RANGES that is. None when every range overlaps a route of this machine.

    Raises:
        AgentError: `wanted` is not an IPv4 network with room for a holder.
    """
    if wanted:
        return _parse_range(wanted)
    ranges = [_parse_range(record.read_text())] if record.exists() else []
    taken = [net for interface, net in _routes() if not interface.startswith(HOLDER_PREFIX) and net.prefixlen]
    found = next((r for r in (*ranges, *RANGES) if not any(r.overlaps(net) for net in taken)), None)
    if found:
        record.write_text(str(found))
    return found


def _parse_range(text: str) -> IPv4Network:
    try:
        network = IPv4Network(text.strip())
    except ValueError as error:
        raise AgentError(f"holder_network must be a network such as 10.231.0.0/16: {error}") from error
    if network.prefixlen > LARGEST_PREFIX:
        raise AgentError(f"holder_network {network} is too small: each holder takes four addresses")
    return network


def default_mtu() -> int:
    """The MTU of the way out, where that is smaller than usual, as in many clouds."""
    for interface, network in _routes():
        if not network.prefixlen:
            mtu: int = _ask_interface(SIOCGIFMTU, interface, "i")
            return min(LARGEST_MTU, mtu)
    return LARGEST_MTU


def forwards() -> bool:
    """Whether this machine forwards packets at all; the engine sees to it unless it was told not to."""
    return (PROC_NET / "ipv4" / "ip_forward").read_text().strip() == "1"


def _set_up_inside(address: IPv4Interface, outer: IPv4Interface) -> None:
    for path, value in SYSCTLS_INSIDE:
        _write(path, value)
    netlink.set_up("lo")
    netlink.add_address(INSIDE, address)
    netlink.set_up(INSIDE)
    netlink.add_default_route(INSIDE, outer.ip)


def _write(path: str, value: str) -> None:
    target = PROC_NET / path
    if target.exists() or not path.startswith("ipv6/"):  # a kernel may have been built without IPv6
        target.write_text(value)


def _routes() -> list[tuple[str, IPv4Network]]:
    found = []
    for line in Path("/proc/thread-self/net/route").read_text().splitlines()[1:]:
        interface, destination, _, _, _, _, _, mask = line.split()[:8]
        address, netmask = (
            ipaddress.IPv4Address(struct.unpack("<I", bytes.fromhex(word))[0].to_bytes(4, "big"))
            for word in (destination, mask)
        )
        found.append((interface, IPv4Network((address, str(netmask)))))
    return found


def _ask_interface(request: int, interface: str, form: str) -> Any:  # what `form` says
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, request, struct.pack("16s16x", interface.encode()))
    return struct.unpack_from(f"={form}", answer, 16)[0]
