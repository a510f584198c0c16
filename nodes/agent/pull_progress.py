"""What an engine's pull stream comes to, in words for the renter: "pulling 1.2 of 3.4 GB"."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GB, MB = 10**9, 10**6
_HERE = {"Already exists", "Pull complete"}
_FETCHED = {"Verifying Checksum", "Download complete", "Extracting", *_HERE}


@dataclass
class _Layer:
    """Bytes of one layer; `total` is None until the registry has told it."""

    got: int = 0
    total: int | None = None
    fetched: bool = False
    here: bool = False


class PullProgress:
    """Adds up the lines of one pull."""

    def __init__(self) -> None:
        self._layers: dict[str, _Layer] = {}
        self._broken = False

    def take(self, line: Mapping[str, Any]) -> str:
        """Read one line; returns how far the pull is now."""
        status = str(line.get("status", ""))
        if "progressDetail" in line and "id" in line:
            self._note(self._layers.setdefault(str(line["id"]), _Layer()), status, line["progressDetail"] or {})
        self._broken = status.startswith("Retrying in")
        return self.words()

    def words(self) -> str:
        """How far the pull is, as a phrase."""
        layers = list(self._layers.values())
        if not layers:
            return "asking the registry"
        if self._broken:
            return "pulling: the connection to the registry broke, trying again"
        here = sum(layer.here for layer in layers)
        if here == len(layers):
            return "finishing"
        if all(layer.fetched for layer in layers):
            return f"unpacking, {here} of {len(layers)} layers done"
        got = sum(layer.got for layer in layers)
        if all(layer.total is not None or layer.fetched for layer in layers):
            return f"pulling {_sizes(got, sum(layer.total or 0 for layer in layers))}"
        return f"pulling {_size(got)}, {here} of {len(layers)} layers done"

    @staticmethod
    def _note(layer: _Layer, status: str, detail: Mapping[str, Any]) -> None:
        if status == "Downloading":
            layer.got = int(detail.get("current") or 0)
            layer.total = int(detail.get("total") or 0) or layer.total
        if status in _FETCHED:
            layer.fetched = True
            layer.got = layer.total or layer.got
        layer.here = layer.here or status in _HERE


def _sizes(got: int, total: int) -> str:
    unit, name = (GB, "GB") if total >= GB else (MB, "MB")
    return f"{got / unit:.1f} of {total / unit:.1f} {name}"


def _size(got: int) -> str:
    return f"{got / GB:.1f} GB" if got >= GB else f"{got / MB:.1f} MB"
