"""What a lease may reach: the internet, and nothing that is ours or the neighbours'.

All bridges of leases share a name prefix, so these rules are made once, before any lease, and hold for each bridge from
its first packet. Making and removing a lease's network then touches no rule. The rules stand in two chains of our own:
DOCKER-USER → LESSOR-FORWARD for what is routed, INPUT → LESSOR-INPUT for the node itself.
"""

import hashlib
import ipaddress
import subprocess
from pathlib import Path

from nodes.agent.failures import AgentError

BRIDGE_PREFIX = "lsr"
FORWARD, INPUT = "LESSOR-FORWARD", "LESSOR-INPUT"
BLOCKED = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16",
    "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
)  # fmt: skip
RESOLV_CONFS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
TOOL_TIMEOUT_S = 30
ANY_LEASE = f"{BRIDGE_PREFIX}+"


def bridge_name(network: str) -> str:
    """The interface of a lease's network: 14 characters, of the 15 that Linux allows."""
    return BRIDGE_PREFIX + hashlib.sha256(network.encode()).hexdigest()[:11]


def chains(resolvers: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Our chains with their rules. `resolvers` are private name servers that the engine asks on a lease's behalf."""
    dns = tuple(
        f"-d {address} -p {protocol} --dport 53 -j RETURN" for address in resolvers for protocol in ("udp", "tcp")
    )
    forward = (
        "-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN",
        f"-o {ANY_LEASE} -j DROP",  # nobody opens a connection to a lease past the gateway, neighbours included
        *dns,
        *(f"-d {network} -j REJECT" for network in BLOCKED),
        "-p tcp --dport 25 -j REJECT",  # mail from rented machines is spam
    )
    to_node = ("-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN", "-j REJECT")
    return {FORWARD: forward, INPUT: to_node}


class HostRules:
    """The rules of one network namespace: the agent's own, or the one that `enter` leads into."""

    def __init__(self, enter: tuple[str, ...] = (), resolv_confs: tuple[Path, ...] = RESOLV_CONFS) -> None:
        self._enter = enter
        self._resolvers = private_resolvers(resolv_confs)

    def ensure(self) -> None:
        """Put the rules in place; one atomic change, the same result however often.

        Raises:
            AgentError: iptables refused. Without rules no lease may run.
        """
        lines = ["*filter"]
        for chain, rules in chains(self._resolvers).items():
            lines.append(f":{chain} - [0:0]")  # creates the chain, or empties it
            lines += [f"-A {chain} {rule}" for rule in rules]
        self._run("iptables-restore", "--wait", "--noflush", stdin="\n".join([*lines, "COMMIT", ""]))
        for parent, match, chain in self._jumps():
            if not self._ok("iptables", "--wait", "-C", parent, *match, "-j", chain):
                self._run("iptables", "--wait", "-I", parent, *match, "-j", chain)

    def remove(self) -> None:
        """Take the rules away; for a machine that stops being a node."""
        for parent, match, chain in self._jumps():
            while self._ok("iptables", "--wait", "-D", parent, *match, "-j", chain):
                pass
        for chain in chains(()):
            self._ok("iptables", "--wait", "-F", chain)
            self._ok("iptables", "--wait", "-X", chain)

    def _jumps(self) -> tuple[tuple[str, tuple[str, ...], str], ...]:
        # The engine keeps DOCKER-USER ahead of its own rules; where it is told to leave iptables alone there is none.
        parent = "DOCKER-USER" if self._ok("iptables", "--wait", "-n", "-L", "DOCKER-USER") else "FORWARD"
        return (
            (parent, ("-i", ANY_LEASE), FORWARD),
            (parent, ("-o", ANY_LEASE), FORWARD),
            ("INPUT", ("-i", ANY_LEASE), INPUT),
        )

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
    found = set()
    for path in paths:
        lines = path.read_text().splitlines() if path.exists() else []
        for words in (line.split() for line in lines):
            if len(words) > 1 and words[0] == "nameserver":
                found.add(words[1])
    return tuple(sorted(address for address in found if _is_private(address, blocked)))


def _is_private(text: str, blocked: list[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return address.version == 4 and not address.is_loopback and any(address in network for network in blocked)  # noqa: PLR2004  # IPv4
