"""Lucide icons, inlined into pages from the npm package, and the checks that find a missing package or a typo at start.

A name is read once per process. Nothing here knows about requests or styling beyond the class `icon`.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.template import engines
from django.template.backends.django import DjangoTemplates
from django.utils.safestring import SafeString, mark_safe

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
# {% icon "timer" %}, and icon="timer" handed to a partial or to one of our tags
_USED = re.compile(r"""\{%-?\s*icon\s+["']([^"']+)["']|\bicon=["']([^"']+)["']""")


class UnknownIconError(LookupError):
    """No such file in lucide-static, or the package is not installed."""


def icon_folder() -> Path:
    """Where `npm ci` puts the icons: one `<name>.svg` each."""
    return Path(settings.BASE_DIR) / "node_modules" / "lucide-static" / "icons"


@lru_cache(maxsize=512)
def icon_svg(name: str) -> SafeString:
    """The icon as an inline `<svg class="icon">`, hidden from screen readers. UnknownIconError says what is missing."""
    if not _NAME.fullmatch(name):
        raise UnknownIconError(f"{name!r} is not an icon name: lower case, digits and dashes")
    try:
        source = (icon_folder() / f"{name}.svg").read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UnknownIconError(f"lucide-static has no icon {name!r}, or `npm ci` was not run") from error
    drawing = source[source.index(">", source.index("<svg")) + 1 : source.rindex("</svg>")]
    # The package is pinned by hash in package-lock.json and the name cannot leave its folder.
    return mark_safe(  # noqa: S308
        '<svg class="icon" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-linecap="round" '
        f'stroke-linejoin="round" aria-hidden="true">{" ".join(drawing.split())}</svg>'
    )


def template_files() -> Iterator[Path]:
    """Our own templates; those of installed packages do not use our tags."""
    for engine in engines.all():
        if isinstance(engine, DjangoTemplates):
            for folder in engine.template_dirs:
                if Path(folder).is_relative_to(settings.BASE_DIR) and "site-packages" not in Path(folder).parts:
                    yield from sorted(Path(folder).rglob("*.html"))


def icon_names(text: str) -> set[str]:
    """Every icon named literally in a template's text."""
    return {first or second for first, second in _USED.findall(text)}


def check_packages(app_configs: Sequence[AppConfig] | None, **_kwargs: object) -> list[checks.CheckMessage]:
    """portal.E101: the front-end packages are not installed."""
    if icon_folder().is_dir():
        return []
    hint = f"Run `npm ci --omit=dev` in {settings.BASE_DIR}."
    return [checks.Error("The front-end packages are missing: no lucide-static icons.", hint=hint, id="portal.E101")]


def check_icons(app_configs: Sequence[AppConfig] | None, **_kwargs: object) -> list[checks.CheckMessage]:
    """portal.E102: a template names an icon that does not exist."""
    if not icon_folder().is_dir():
        return []  # E101 says it once
    found: list[checks.CheckMessage] = []
    for path in template_files():
        for name in sorted(icon_names(path.read_text(encoding="utf-8"))):
            try:
                icon_svg(name)
            except UnknownIconError as error:
                found.append(checks.Error(str(error), obj=str(path.relative_to(settings.BASE_DIR)), id="portal.E102"))
    return found
