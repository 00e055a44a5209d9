"""Dates inside numbers: whether a year, month and day are one of the calendar."""

from __future__ import annotations

import calendar


def is_date(year: int, month: int, day: int) -> bool:
    """Tell whether the day is one of the Gregorian calendar between 1850 and 2100."""
    return 1850 <= year <= 2100 and 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]


def is_short_date(year: str, month: str, day: str) -> bool:
    """Tell whether a date with two digits of the year exists in the 20th or the 21st century."""
    return any(is_date(century + int(year), int(month), int(day)) for century in (1900, 2000))
