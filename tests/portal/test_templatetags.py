"""The component tags as pages use them: through a template, in both languages."""

import os
import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django import forms
from django.conf import settings
from django.template import engines
from django.test import override_settings
from django.utils import translation

from portal import icons
from portal.drawings import ribbon_widths
from portal.templatetags.lessor import _style_for

NOW = 1_764_600_000


def render(source: str, **context: Any) -> str:
    html = engines["django"].from_string(source).render({"currency": "USD", "now_unix": NOW, **context})
    return re.sub(r"\s+", " ", html).strip()


@pytest.fixture(autouse=True)
def _fresh_styles() -> None:
    _style_for.cache_clear()


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 182400000|money:currency }}", "$182.40"),
        ("{{ 656640000000|ticks_money:currency }}", "$182.40"),
        ("{{ 66423240000|ticks_cost:'USD' }}", "$18.4509"),
        ("{{ 66423240000|ticks_line:'USD' }}", "$18.450900"),
        ("{{ 385000|per_hour:currency }}", "$0.385"),
        ("{{ 2490000|per_second:currency }}", "$0.000692"),
        ("{{ 13338|duration }}", "3 h 42 min 18 s"),
        ("{{ 13338|integer }}", "13,338"),
        ("{{ 1|percent_of:3 }} {{ 5|percent_of:0 }} {{ 9|percent_of:3 }}", "33 0 100"),
    ],
)
def test_filters_format_integers(source: str, text: str) -> None:
    assert render(source) == text


def test_symbols_and_separators_follow_the_language() -> None:
    with translation.override("zh-hans"):
        assert render("{{ 1500000000|money:'CNY' }} {{ 1500000000|money:'USD' }}") == "¥1,500.00 $1,500.00"
    assert render("{{ 1500000000|money:'CNY' }}") == "CN¥1,500.00"


def test_every_message_has_a_chinese_translation_with_the_same_placeholders() -> None:
    catalog = settings.BASE_DIR / "locale/zh_Hans/LC_MESSAGES/django.po"
    command = ["msgfmt", "--check", "--statistics", "-o", os.devnull, str(catalog)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    assert done.returncode == 0, done.stderr
    assert "untranslated" not in done.stderr
    assert "fuzzy" not in done.stderr


@pytest.mark.parametrize("name", ["requested", "assigned", "starting", "running", "stopping", "ended", "interrupted"])
def test_a_state_is_told_by_glyph_word_and_colour(name: str) -> None:
    badge = render("{% state name %}", name=name)
    assert f'data-state="{name}"' in badge
    assert "<svg" in badge
    assert badge.endswith(f"{name.capitalize()}</span>")


def test_a_price_takes_the_currency_of_the_page_unless_it_is_given() -> None:
    assert re.sub("<[^>]+>", "", render("{% price 2490000 %}")) == "$2.49 / h$0.000692 / s"
    assert "¥250" in render("{% price 250000000 'JPY' %}")


def test_a_ticker_starts_with_what_the_server_counts() -> None:
    html = render("{% ticker 4980000 from_unix 36398818800 %}", from_unix=NOW - 5936)
    assert '<span data-whole>18.32</span><span class="frac" data-frac>22</span>' in html
    assert 'data-base="36398818800" data-digits="4"' in html


def test_a_ticker_without_an_open_segment_does_not_count() -> None:
    html = render("{% ticker 4980000 None 36398818800 %}")
    assert "data-ticker" not in html
    assert "10.11" in html


def test_a_countdown_says_what_is_left_without_javascript() -> None:
    assert render("{% countdown until %}", until=NOW + 700).endswith(">11 min 40 s</span>")
    assert render("{% age since %}", since=NOW - 61).endswith(">1 min 01 s</span>")


def test_a_moment_names_its_zone_and_its_date_only_when_it_is_not_today() -> None:
    now = datetime.now(UTC)
    today = render("{{ at|localtime_tz }}", at=now)
    past = render("{{ at|localtime_tz }}", at=now - timedelta(days=40))
    assert re.search(r">\d\d:\d\d:\d\d UTC</time>$", today)
    assert not re.search(r">\d\d:\d\d:\d\d UTC</time>$", past)
    assert past.endswith(" UTC</time>")
    assert f'datetime="{now:%Y-%m-%dT%H:%M:%SZ}"' in today


@pytest.mark.parametrize(
    ("percent", "kind"), [(0, "good"), (79, "good"), (80, "warn"), (94, "warn"), (95, "bad"), (250, "bad")]
)
def test_a_meter_turns_amber_at_80_and_red_at_95(percent: int, kind: str) -> None:
    html = render("{% meter percent 'work' hold=50 %}", percent=percent)
    assert f'class="fill {kind}" width="{min(percent, 100)}%"' in html
    assert f'x="{min(percent, 100)}%" width="{min(50, 100 - min(percent, 100))}%"' in html


@pytest.mark.parametrize(("free", "total", "lit"), [(0, 8, 0), (1, 64, 1), (4, 8, 4), (8, 8, 8), (0, 0, 0)])
def test_one_free_gpu_of_many_still_lights_a_bar(free: int, total: int, lit: int) -> None:
    html = render("{% avail free total %}", free=free, total=total)
    assert html.count('class="on"') == lit
    assert f"{free} of {total} free" in html


def test_a_ribbon_fills_its_width_and_says_when_it_is_not_to_scale() -> None:
    assert ribbon_widths([50, 150]) == ([25.0, 75.0], False)
    widths, widened = ribbon_widths([1, 100_000])
    assert sum(widths) == pytest.approx(100)
    assert widths[0] > 2
    assert widened
    html = render("{% ribbon s 'all' %}", s=[{"kind": "free", "seconds": 1}, {"kind": "charged", "seconds": 0}])
    assert html.count('<rect class="free"') == 1
    assert 'class="charged"' not in html


def test_text_that_came_from_people_is_escaped_everywhere() -> None:
    evil = '"><script>alert(1)</script>'
    sources = (
        "{% copyline evil label=evil %}{% meter 3 evil %}{% ribbon s evil %}{% timeline e %}",
        "{% price 1 evil %}",
        "{{ 1|per_second:'USD' }}{% avail 1 2 %}",
    )
    events = [{"state": "running", "title": evil, "why": evil}]
    html = render(sources[0], evil=evil, s=[{"kind": evil, "seconds": 5}], e=events)
    assert "<script>" not in html
    with pytest.raises(ValueError, match="ISO 4217"):
        render(sources[1], evil=evil)


class SampleForm(forms.Form):
    """A field with help, to be filled in wrongly."""

    name = forms.CharField(
        label="Name", help_text="At most 60 characters", widget=forms.TextInput({"placeholder": "Name"})
    )
    agree = forms.BooleanField(label="Agree", required=False)


def test_a_field_ties_its_hint_and_error_to_the_control() -> None:
    html = render("{% field form.name %}", form=SampleForm(data={"name": ""}))
    assert 'aria-describedby="id_name-hint id_name-error"' in html
    assert 'aria-invalid="true"' in html
    assert 'id="id_name-hint"' in html
    assert 'id="id_name-error"' in html
    assert "placeholder" not in html
    assert 'for="id_name"' in html


def test_a_field_without_fault_names_only_its_hint() -> None:
    html = render("{% field form.name unit='characters' %}{% field form.agree %}", form=SampleForm())
    assert 'aria-describedby="id_name-hint"' in html
    assert "aria-invalid" not in html
    assert "<span>characters</span></div>" in html
    assert '<label class="check" for="id_agree">' in html


def test_an_icon_is_inlined_and_a_wrong_name_is_refused() -> None:
    assert render("{% icon 'timer' %}").startswith('<svg class="icon" viewBox="0 0 24 24"')
    for name in ("no-such-icon", "../package", "Timer", ""):
        with pytest.raises(icons.UnknownIconError):
            icons.icon_svg(name)


def test_the_check_names_the_template_with_a_misspelt_icon(tmp_path: Path, settings: Any) -> None:
    templates = tmp_path / "templates"
    templates.mkdir()
    (templates / "page.html").write_text('{% icon "timer" %}{% icon "tiimer" %}{% include "x" with icon="pluss" %}')
    packages = icons.icon_folder().parents[1]
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [templates], "APP_DIRS": False}]
    settings.BASE_DIR = tmp_path
    (tmp_path / "node_modules").symlink_to(packages)
    found = icons.check_icons(None)
    assert [message.id for message in found] == ["portal.E102", "portal.E102"]
    assert [re.findall("'([^']+)'", message.msg)[0] for message in found] == ["pluss", "tiimer"]
    assert found[0].obj == "templates/page.html"


def test_missing_packages_are_one_error_with_the_command_that_helps(tmp_path: Path) -> None:
    with override_settings(BASE_DIR=tmp_path):
        (message,) = icons.check_packages(None)
        assert icons.check_icons(None) == []
    assert message.id == "portal.E101"
    assert "npm ci" in str(message.hint)


def test_every_icon_and_stylesheet_named_in_our_templates_exists() -> None:
    assert icons.check_packages(None) + icons.check_icons(None) == []
    head = (settings.BASE_DIR / "templates/_head.html").read_text()
    for sheet in (settings.BASE_DIR / "static/css/components").glob("*.css"):
        assert f'"{sheet.relative_to(settings.BASE_DIR / "static")}"' in head


def test_no_template_breaks_the_content_security_policy() -> None:
    forbidden = re.compile(r"\sstyle=|<style|\son[a-z]+=|<script(?![^>]*src=)|hx-on|javascript:|\bdefer\b(?!.*#\})")
    for path in icons.template_files():
        if "email" in path.parts and "account/email.html" not in str(path):
            continue  # mails are not served under the policy
        assert not forbidden.search(path.read_text()), path


def test_only_the_tokens_hold_literal_colours() -> None:
    literal = re.compile(r"#[0-9a-fA-F]{3,8}\b|\b(?:rgb|hsl|oklch)a?\(")
    for sheet in (settings.BASE_DIR / "static/css").rglob("*.css"):
        if sheet.name != "tokens.css":
            assert not literal.search(sheet.read_text()), sheet
