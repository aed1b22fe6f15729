# requires: pytz
import datetime

import pytz


def run(value):
    moment = pytz.timezone("Europe/Prague").localize(datetime.datetime(2026, 7, 1, 12))
    return [
        moment.isoformat(),
        moment.astimezone(pytz.timezone("Asia/Tokyo")).isoformat(),
        len(pytz.all_timezones),
        pytz.country_timezones["de"],
    ]
