# requires: dateparser
import dateparser


def run(value):
    return [str(dateparser.parse(each)) for each in ("12. prosince 2026", "3 de enero de 2025 10:40", "2026-11-29")]
