"""The five things the agent asks of the kernel's routing socket: make a pair of interfaces, give an address, bring up,
route, delete. Called in the network namespace that is meant; a fraction of what starting `ip` costs.

Source: rtnetlink(7), linux/if_link.h, linux/veth.h.
"""

import errno
import os
import socket
import struct
from ipaddress import IPv4Address, IPv4Interface

NEWLINK, DELLINK, NEWADDR, NEWROUTE = 16, 17, 20, 24
REQUEST, ACK, EXCL, CREATE = 0x1, 0x4, 0x200, 0x400
UP = 0x1
IFLA_IFNAME, IFLA_MTU, IFLA_LINKINFO, IFLA_NET_NS_PID = 3, 4, 18, 19
INFO_KIND, INFO_DATA, VETH_PEER = 1, 2, 1
IFA_ADDRESS, IFA_LOCAL = 1, 2
RTA_OIF, RTA_GATEWAY = 4, 5
MAIN_TABLE, BY_ADMINISTRATOR, UNICAST = 254, 4, 1


def create_pair(name: str, peer: str, peer_pid: int, mtu: int) -> None:
    """A veth pair: `name` here, `peer` in the namespace of process `peer_pid`; both down.

    Raises:
        OSError: a name is taken, or the process is gone.
    """
    inside = _link(0) + _text(IFLA_IFNAME, peer) + _number(IFLA_MTU, mtu) + _number(IFLA_NET_NS_PID, peer_pid)
    info = _text(INFO_KIND, "veth") + _attribute(INFO_DATA, _attribute(VETH_PEER, inside))
    outside = _link(0) + _text(IFLA_IFNAME, name) + _number(IFLA_MTU, mtu) + _attribute(IFLA_LINKINFO, info)
    _ask(NEWLINK, CREATE | EXCL, outside)


def add_address(name: str, address: IPv4Interface) -> None:
    """Give an interface an address with its network."""
    index, packed = socket.if_nametoindex(name), address.ip.packed
    header = struct.pack("=BBBBI", socket.AF_INET, address.network.prefixlen, 0, 0, index)
    _ask(NEWADDR, CREATE | EXCL, header + _attribute(IFA_LOCAL, packed) + _attribute(IFA_ADDRESS, packed))


def set_up(name: str) -> None:
    """Bring an interface up."""
    _ask(NEWLINK, 0, _link(socket.if_nametoindex(name), UP, UP))


def add_default_route(name: str, gateway: IPv4Address) -> None:
    """Send everything else through `gateway`, out of `name`."""
    header = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, MAIN_TABLE, BY_ADMINISTRATOR, 0, UNICAST, 0)
    oif = _number(RTA_OIF, socket.if_nametoindex(name))
    _ask(NEWROUTE, CREATE | EXCL, header + _attribute(RTA_GATEWAY, gateway.packed) + oif)


def delete(name: str) -> None:
    """Delete an interface, and with it its peer; one that is not there is a success."""
    try:
        _ask(DELLINK, 0, _link(socket.if_nametoindex(name)))
    except OSError as error:
        # None: Python's own words for a name without a number.
        if error.errno not in {errno.ENODEV, errno.ENXIO, None}:
            raise


def _link(index: int, flags: int = 0, change: int = 0) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, change)


def _attribute(kind: int, content: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(content), kind) + content + b"\0" * (-len(content) % 4)


def _text(kind: int, value: str) -> bytes:
    return _attribute(kind, value.encode() + b"\0")


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("=I", value))


def _ask(kind: int, flags: int, body: bytes) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as route:
        route.bind((0, 0))
        route.send(struct.pack("=IHHII", 16 + len(body), kind, flags | REQUEST | ACK, 1, 0) + body)
        answer = route.recv(65536)
    (code,) = struct.unpack_from("=i", answer, 16)  # struct nlmsgerr follows the header; 0 is the acknowledgement
    if code:
        raise OSError(-code, os.strerror(-code))
