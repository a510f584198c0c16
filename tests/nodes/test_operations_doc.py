"""What docs/operations.md says of nodes."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings

from nodes import broker


def test_the_number_of_a_nodes_commands_is_true() -> None:
    text = Path(settings.BASE_DIR, "docs", "operations.md").read_text(encoding="utf-8")
    assert f"the {len(broker.COMMANDS)} commands" in text
