"""docs/operations.md says what settings there are."""

from __future__ import annotations

import re
from pathlib import Path

from django.conf import settings

from nodes import broker


def test_every_environment_variable_is_documented_and_none_is_invented() -> None:
    source = Path(settings.BASE_DIR, "portal", "settings.py").read_text(encoding="utf-8")
    read = set(re.findall(r"""env\.\w+\(\s*["'](\w+)["']""", source))
    text = Path(settings.BASE_DIR, "docs", "operations.md").read_text(encoding="utf-8")
    table = text.partition("## The node broker")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == read


def test_the_number_of_a_nodes_commands_is_true() -> None:
    text = Path(settings.BASE_DIR, "docs", "operations.md").read_text(encoding="utf-8")
    assert f"the {len(broker.COMMANDS)} commands" in text
