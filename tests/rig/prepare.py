"""Builds what rig tests would otherwise build under a test's time limit: fake NVML, bundle, workspace image.

`python -m tests.rig.prepare`, as root; a second run takes a few seconds.
"""

from tests.rig import images, nvml
from tests.rig.engine import Engine, sweep


def main() -> None:
    """Leaves everything in var/."""
    sweep()
    nvml.library_dir()
    images.build_bundle(images.REPOSITORY / "var" / "bundle")
    if not images.workspace_is_cached():
        with Engine([]) as engine:
            images.add_workspace(engine)


if __name__ == "__main__":
    main()
