"""Which static files are collected. In INSTALLED_APPS `portal.staticfiles.StaticFiles` replaces Django's own."""

from django.contrib.staticfiles.apps import StaticFilesConfig
from django.core import checks

from portal.icons import check_icons, check_packages


class StaticFiles(StaticFilesConfig):
    """Leaves out what no page loads, and checks the front-end packages at start."""

    # The npm packages bring builds for every taste; a page loads one of each. Cuts collectstatic from 900 files to 250.
    ignore_patterns = [
        *StaticFilesConfig.ignore_patterns,
        *("*rtl*", "*.esm*", "*.mjs", "*.d.ts", "editors", "skills", "scripts", "htmax*", "htmx.js"),
        *("uPlot.js", "uPlot.cjs*", "bootstrap.css*", "bootstrap.min*", "bootstrap-grid*"),
        *("bootstrap-reboot.css*", "bootstrap-utilities.css*"),
        *("redoc", "rest_framework", "swagger-ui-es*"),  # our API pages are Swagger UI's bundle and nothing else
        *("*cyrillic*", "*greek*", "*vietnamese*", "*italic*", "*opsz*", "*standard*"),
    ]

    def ready(self) -> None:
        """Registers portal.E101 and portal.E102."""
        super().ready()
        checks.register(check_packages, checks.Tags.staticfiles)
        checks.register(check_icons, checks.Tags.templates)
