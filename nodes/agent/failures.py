"""What can go wrong on a node, sorted by who has to act; and the sentences a renter reads about it."""

import re
from http import HTTPStatus
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
    """The container engine gave no answer in time: nothing is known about what was asked.

    `sent` is False when it cannot have heard the call: no connection came about.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


Again = Literal["never", "limited", "later"]


class ImageError(EngineError):
    """The image cannot be had; the message is fit for the renter.

    `again` says whether another try makes sense: "limited" after `after_s` (None: the registry did not say), "later"
    where something on the way broke.
    """

    def __init__(self, message: str, *, status: int = 0, again: Again = "never", after_s: float | None = None) -> None:
        super().__init__(message, status=status)
        self.again: Again = again
        self.after_s = after_s


class LaunchError(Exception):
    """A lease could not be brought up. `failure` is the class the portal learns, the message is fit for the renter."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure: Failure = failure


class UnsettledError(LaunchError):
    """The engine gave no answer to what it may have done all the same: look again before anything else."""


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
    if isinstance(error, EngineUnreachableError) or error.status == HTTPStatus.CONFLICT:
        # The conflict is an earlier call's, which got no answer in time and was carried out late.
        return UnsettledError("failed_launch", f"The container engine did not answer in time: {tail(text)}")
    if _GPU_WORDS.search(text):
        return LaunchError("failed_gpu", f"The node could not hand out the GPU: {tail(text)}")
    return LaunchError("failed_launch", f"The container could not be started: {tail(text)}")


def classify_preparation(problem: BaseException) -> LaunchError:
    """Turn what kept network or volume from being made into the failure class of the lease."""
    if isinstance(problem, EngineUnreachableError):
        return classify_start(problem)
    return LaunchError("failed_launch", f"The node could not prepare the lease: {problem}")


def is_driver_fault(text: str) -> bool:
    """Whether a refusal speaks against the node's driver or toolkit, so that its other GPUs cannot be sold either."""
    return bool(_DRIVER_WORDS.search(text))


# What engines pass on of a registry's refusal, sorted by what the renter has to know. The first that matches counts.
_IMAGE_WORDS: tuple[tuple[str, Again, str], ...] = (
    (
        r"toomanyrequests|too many requests|\b429\b", "limited",
        "The registry of {image} limits how often images are pulled, and the limit is used up.",
    ),
    (r"no space left", "never", "The node has no room left for the image {image}."),
    (r"invalid reference|invalid repository|invalid tag", "never", "{image} is not a valid image name."),
    (r"no matching manifest", "never", "The image {image} is not made for this kind of machine."),
    (r"manifest unknown|manifest for|manifest_unknown", "never", "The image {image} has no such tag."),
    (r"does not exist|not found|name unknown|\b404\b", "never", "The image {image} does not exist, or is not public."),
    (
        r"unauthorized|authentication required|no basic auth|\b401\b", "never",
        "The image {image} is not public: its registry asks for a login.",
    ),
    (r"denied|forbidden|\b403\b", "never", "The registry of {image} refuses access: the image is not public."),
    (
        r"no such host|timeout|connection refused|network is unreachable|no route to host|deadline exceeded", "later",
        "The image {image} is not on this node, and its registry could not be reached.",
    ),
    (
        r"\beof\b|connection reset|broken pipe|verification failed|status: 5\d\d|gateway|unavailable|range request",
        "later",
        "The registry of {image} fails, or breaks off in the middle.",
    ),
)  # fmt: skip


def image_error(image: str, text: str) -> ImageError:
    """Why `image` could not be pulled; `text` is the engine's own message."""
    for words, again, sentence in _IMAGE_WORDS:
        if re.search(words, text.replace(image, ""), re.IGNORECASE):
            return ImageError(sentence.format(image=image), again=again)
    return ImageError(f"The image {image} could not be pulled: {tail(text)}")


def tail(text: str, limit: int = 300) -> str:
    """The last part of an engine's message, where the cause stands, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= limit else "…" + line[-limit:]
