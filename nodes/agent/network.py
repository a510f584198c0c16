"""What a lease may reach: the internet, and nothing that is ours or the neighbours'.

All interfaces of leases share a name prefix, so these rules are made once, before any lease, and hold for each of them
from its first packet. Making and removing a lease's network then touches no rule. The rules stand in chains of our own:
DOCKER-USER → LESSOR-FORWARD for what is routed, INPUT → LESSOR-INPUT for the node itself. The engine lets out what
comes from its own bridges; for interfaces of holders, which it does not know, LESSOR-ACCEPT and LESSOR-NAT do the same,
behind everything that DOCKER-USER refuses.
"""

import hashlib
import ipaddress
import subprocess
from ipaddress import IPv4Network
from pathlib import Path

from nodes.agent.failures import AgentError

BRIDGE_PREFIX = "lsr"
HOLDER_PREFIX = f"{BRIDGE_PREFIX}h"  # no bridge's: the rest of its name is hexadecimal
FORWARD, INPUT, ACCEPT, NAT = "LESSOR-FORWARD", "LESSOR-INPUT", "LESSOR-ACCEPT", "LESSOR-NAT"
BLOCKED = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16",
    "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
)  # fmt: skip
RESOLV_CONFS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
PUBLIC_RESOLVERS = ("8.8.8.8", "8.8.4.4")
TOOL_TIMEOUT_S = 30
ANY_LEASE, ANY_HOLDER = f"{BRIDGE_PREFIX}+", f"{HOLDER_PREFIX}+"
ESTABLISHED = "-m conntrack --ctstate ESTABLISHED,RELATED"


def bridge_name(network: str) -> str:
    """The interface of a lease's network: 14 characters, of the 15 that Linux allows."""
    return BRIDGE_PREFIX + hashlib.sha256(network.encode()).hexdigest()[:11]


def holder_interface(holder: str) -> str:
    """The node's end of a holder's network: 15 characters, which is what Linux allows."""
    return HOLDER_PREFIX + hashlib.sha256(holder.encode()).hexdigest()[:11]


def chains(resolvers: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Our chains of the filter table with their rules. `resolvers` are private name servers that leases may ask."""
    dns = tuple(
        f"-d {address} -p {protocol} --dport 53 -j RETURN" for address in resolvers for protocol in ("udp", "tcp")
    )
    forward = (
        f"{ESTABLISHED} -j RETURN",
        f"-o {ANY_LEASE} -j DROP",  # nobody opens a connection to a lease past the gateway, neighbours included
        *dns,
        *(f"-d {network} -j REJECT" for network in BLOCKED),
        "-p tcp --dport 25 -j REJECT",  # mail from rented machines is spam
    )
    to_node = (f"{ESTABLISHED} -j RETURN", "-j REJECT")
    accept = (f"-o {ANY_HOLDER} {ESTABLISHED} -j ACCEPT", f"-i {ANY_HOLDER} -j ACCEPT")
    return {FORWARD: forward, INPUT: to_node, ACCEPT: accept}


class HostRules:
    """The rules of one network namespace: the agent's own, or the one that `enter` leads into."""

    def __init__(
        self,
        enter: tuple[str, ...] = (),
        resolv_confs: tuple[Path, ...] = RESOLV_CONFS,
        holders: IPv4Network | None = None,
    ) -> None:
        """`holders`: the addresses of holders, which leave this machine under its own; None where there are none."""
        self._enter = enter
        self._resolvers = private_resolvers(resolv_confs)
        self._holders = holders

    def ensure(self) -> None:
        """Put the rules in place; one atomic change, the same result however often.

        Raises:
            AgentError: iptables refused. Without rules no lease may run.
        """
        filters = [f":{chain} - [0:0]" for chain in chains(())]  # creates the chain, or empties it
        filters += [f"-A {chain} {rule}" for chain, rules in chains(self._resolvers).items() for rule in rules]
        nat = [f":{NAT} - [0:0]"]
        if self._holders:
            nat.append(f"-A {NAT} -s {self._holders} ! -o {ANY_LEASE} -j MASQUERADE")
        tables = ["*filter", *filters, "COMMIT", "*nat", *nat, "COMMIT", ""]
        self._run("iptables-restore", "--wait", "--noflush", stdin="\n".join(tables))
        for table, parent, match, chain in self._jumps():
            if not self._ok("iptables", "--wait", "-t", table, "-C", parent, *match, "-j", chain):
                self._run("iptables", "--wait", "-t", table, "-I", parent, *match, "-j", chain)
        if not self._ok("iptables", "--wait", "-C", "FORWARD", "-j", ACCEPT):
            self._run("iptables", "--wait", *self._after_engine(), "-j", ACCEPT)

    def remove(self) -> None:
        """Take the rules away; for a machine that stops being a node."""
        for table, parent, match, chain in (*self._jumps(), ("filter", "FORWARD", (), ACCEPT)):
            while self._ok("iptables", "--wait", "-t", table, "-D", parent, *match, "-j", chain):
                pass
        for table, chain in (*(("filter", chain) for chain in chains(())), ("nat", NAT)):
            self._ok("iptables", "--wait", "-t", table, "-F", chain)
            self._ok("iptables", "--wait", "-t", table, "-X", chain)

    def _jumps(self) -> tuple[tuple[str, str, tuple[str, ...], str], ...]:
        # The engine keeps DOCKER-USER ahead of its own rules; where it is told to leave iptables alone there is none.
        parent = "DOCKER-USER" if self._ok("iptables", "--wait", "-n", "-L", "DOCKER-USER") else "FORWARD"
        return (
            ("filter", parent, ("-i", ANY_LEASE), FORWARD),
            ("filter", parent, ("-o", ANY_LEASE), FORWARD),
            ("filter", "INPUT", ("-i", ANY_LEASE), INPUT),
            ("nat", "POSTROUTING", (), NAT),
        )

    def _after_engine(self) -> tuple[str, ...]:
        """Where to accept: behind DOCKER-USER, so that what the machine's owner refuses there is refused to leases."""
        lines = self._call(("iptables", "--wait", "-S", "FORWARD")).stdout.splitlines()
        rules = [line for line in lines if line.startswith("-A ")]
        places = [number for number, rule in enumerate(rules, 1) if rule.endswith("-j DOCKER-USER")]
        return ("-I", "FORWARD", str(places[0] + 1)) if places else ("-A", "FORWARD")

    def _ok(self, *command: str) -> bool:
        return self._call(command).returncode == 0

    def _run(self, *command: str, stdin: str = "") -> None:
        result = self._call(command, stdin)
        if result.returncode:
            raise AgentError(f"{command[0]}: {result.stderr.strip()[-300:]}")

    def _call(self, command: tuple[str, ...], stdin: str = "") -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [*self._enter, *command],
                input=stdin,
                capture_output=True,
                text=True,
                timeout=TOOL_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise AgentError(f"{command[0]}: {error}") from error


def private_resolvers(paths: tuple[Path, ...]) -> tuple[str, ...]:
    """Name servers inside a blocked range. The engine forwards a container's DNS from the container's own namespace, so
    in a network with its own resolver names would not resolve at all without an exception for port 53 of just these."""
    blocked = [ipaddress.ip_network(network) for network in BLOCKED]
    found = {server for path in paths for server in _name_servers(path)}
    return tuple(sorted(address for address in found if _is_private(address, blocked)))


def lease_resolvers(paths: tuple[Path, ...] = RESOLV_CONFS) -> tuple[str, ...]:
    """The name servers that a lease in a holder asks by itself: those of the first file that names one which is not on
    the machine's own loopback; where there are none, the public ones that the engine falls back to as well."""
    for path in paths:
        usable = [address for address in map(_ipv4, _name_servers(path)) if address and not address.is_loopback]
        if usable:
            return tuple(map(str, usable))
    return PUBLIC_RESOLVERS


def _name_servers(path: Path) -> list[str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [words[1] for words in map(str.split, lines) if len(words) > 1 and words[0] == "nameserver"]


def _is_private(text: str, blocked: list[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    address = _ipv4(text)
    return address is not None and not address.is_loopback and any(address in network for network in blocked)


def _ipv4(text: str) -> ipaddress.IPv4Address | None:
    try:
        return ipaddress.IPv4Address(text)
    except ValueError:
        return None
