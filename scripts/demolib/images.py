"""The workspace image on the demo's engine, built once and cached."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from scripts.demolib.portal_stack import ROOT
from scripts.demolib.processes import DemoError

if TYPE_CHECKING:
    from pathlib import Path


def ensure_workspace_image(socket: Path) -> None:
    """Build or load ``lessor/workspace:1``; DemoError with the builder's last words."""
    done = subprocess.run(
        [str(ROOT / "deploy" / "images" / "build-workspace")],
        env={**os.environ, "DOCKER_HOST": f"unix://{socket}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DemoError(f"The workspace image could not be built:\n{(done.stderr or done.stdout)[-2000:]}")
