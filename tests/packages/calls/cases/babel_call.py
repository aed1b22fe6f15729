# requires: babel
# records: the texts of one call
import datetime

from babel import Locale
from babel.dates import format_date
from babel.numbers import format_currency


def run(value):
    day = datetime.date(2026, 11, 29)
    return [
        format_date(day, "full", locale="de_DE"),
        format_currency(1234567.891, "EUR", locale="fr_FR"),
        Locale("cs").get_display_name("ja"),
    ]
