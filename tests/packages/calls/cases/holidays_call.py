# requires: holidays
import datetime

import holidays


def run(value):
    germany = holidays.country_holidays("DE", subdiv="BY", years=2026)
    return [germany.get(datetime.date(2026, 10, 3)), len(germany), holidays.country_holidays("JP").get("2026-01-01")]
