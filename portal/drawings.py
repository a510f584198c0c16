"""Shapes and widths of the drawings on pages. Pure: no words, no colours, no Django."""

from collections.abc import Mapping, Sequence

# One shape per state, 12 x 12, so that colour never carries the meaning alone.
GLYPHS: Mapping[str, str] = {
    "requested": '<circle cx="6" cy="6" r="4.5" fill="none" stroke="currentColor" stroke-width="1.6" '
    'stroke-dasharray="2 2.2"/>',
    "assigned": '<circle cx="6" cy="6" r="4.5" fill="none" stroke="currentColor" stroke-width="1.6"/>'
    '<path d="M6 1.5a4.5 4.5 0 0 1 0 9z" fill="currentColor"/>',
    "starting": '<path d="M10.5 6A4.5 4.5 0 1 1 6 1.5" fill="none" stroke="currentColor" stroke-width="1.8" '
    'stroke-linecap="round"/>',
    "running": '<circle cx="6" cy="6" r="5" fill="currentColor"/><path class="hole" d="M4.9 3.9 8.2 6 4.9 8.1z"/>',
    "stopping": '<path d="M6 1.5A4.5 4.5 0 1 1 1.5 6" fill="none" stroke="currentColor" stroke-width="1.8" '
    'stroke-linecap="round"/>',
    "ended": '<rect x="2" y="2" width="8" height="8" rx="1.6" fill="currentColor"/>',
    "interrupted": '<path d="M6 .8 11.2 6 6 11.2.8 6z" fill="currentColor"/>',
}

_RIBBON_LEAST = 3.0  # per cent of the width; thinner stretches would vanish


def ribbon_widths(seconds: Sequence[int]) -> tuple[list[float], bool]:
    """Widths in per cent that sum to 100, thin ones raised to be seen; True when that changed the scale."""
    total = sum(seconds)
    if not total:
        return [], False
    exact = [100 * s / total for s in seconds]
    raised = [max(_RIBBON_LEAST, width) for width in exact]
    return [100 * width / sum(raised) for width in raised], min(exact) < _RIBBON_LEAST
