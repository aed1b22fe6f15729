# requires: workalendar
import datetime

from workalendar.europe import CzechRepublic
from workalendar.registry import registry


def run(value):
    return [
        [label for _, label in CzechRepublic().holidays(2026)],
        registry.get("JP")().is_working_day(datetime.date(2026, 1, 1)),
    ]
