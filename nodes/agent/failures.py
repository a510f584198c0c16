"""What can go wrong on a node, sorted by who has to act; and the sentences a renter reads about it."""

import re
from typing import Literal

Failure = Literal["failed_image", "failed_gpu", "failed_launch"]


class AgentError(Exception):
    """The agent cannot work as configured; the message says what to do about it."""


class EngineError(Exception):
    """The container engine refused a call. `status` is its HTTP status, 0 when there was no answer."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class EngineUnreachableError(EngineError):
    """The container engine gave no answer in time: nothing is known about what was asked."""


class ImageError(EngineError):
    """The image cannot be had; the message is fit for the renter."""


class LaunchError(Exception):
    """A lease could not be brought up. `failure` is the class the portal learns, the message is fit for the renter."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure: Failure = failure


# What engines, NVIDIA's hook and CDI say when a device is the reason. Collected from dockerd 20.10 and 28, from
# libnvidia-container and from runc; matched without regard to case.
_GPU_WORDS = re.compile(
    r"unknown device|could not select device driver|unresolvable cdi devices|cdi device injection failed|"
    r"nvidia-container-cli|nvml error|gpu is lost|nvidia-container-runtime-hook",
    re.IGNORECASE,
)
# Of these, the ones that say the driver or the toolkit is at fault and not one UUID.
_DRIVER_WORDS = re.compile(
    r"could not select device driver|driver error|driver not loaded|nvml error|initialization error", re.IGNORECASE
)


def classify_start(error: EngineError) -> LaunchError:
    """Turn a refusal of create or start into the failure class of the lease."""
    text = str(error)
    if _GPU_WORDS.search(text):
        return LaunchError("failed_gpu", f"The node could not hand out the GPU: {tail(text)}")
    return LaunchError("failed_launch", f"The container could not be started: {tail(text)}")


def is_driver_fault(text: str) -> bool:
    """Whether a refusal speaks against the node's driver or toolkit, so that its other GPUs cannot be sold either."""
    return bool(_DRIVER_WORDS.search(text))


def image_sentence(image: str, text: str) -> str:
    """What a renter reads when `image` could not be pulled; `text` is the engine's own message."""
    lowered = text.lower()
    if "manifest unknown" in lowered or "manifest for" in lowered:
        return f"The image {image} has no such tag."
    if "pull access denied" in lowered or "not found" in lowered or "unauthorized" in lowered:
        return f"The image {image} does not exist, or is not public."
    if "invalid reference" in lowered or "invalid repository" in lowered or "invalid tag" in lowered:
        return f"{image} is not a valid image name."
    if any(word in lowered for word in ("no such host", "timeout", "connection refused", "network is unreachable")):
        return f"The image {image} is not on this node, and its registry could not be reached."
    if "no space left" in lowered:
        return f"The node has no room left for the image {image}."
    return f"The image {image} could not be pulled: {tail(text)}"


def tail(text: str, limit: int = 300) -> str:
    """The last part of an engine's message, where the cause stands, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= limit else "…" + line[-limit:]
