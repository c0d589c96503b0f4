"""Counts and durations in words."""

from __future__ import annotations


def counted(count: float, what: str) -> str:
    """Return a count with its noun, such as ``1 row`` or ``2 rows``."""
    return f"1 {what}" if count == 1 else f"{count:,} {what}s"


def duration(seconds: float) -> str:
    """Return a time in words, with two or three digits that matter.

    Example:
        >>> duration(0.123), duration(6.24), duration(42.3), duration(400.1), duration(3060), duration(4000)
        ('0.12 s', '6.2 s', '42 s', '6 min 40 s', '51 min', '1 h 7 min')
    """
    if not seconds:
        return "0 s"
    if round(seconds, 1) < 10:
        return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2f} s"
    whole, minutes = round(seconds), round(seconds / 60)
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
