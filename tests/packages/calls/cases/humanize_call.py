# requires: humanize
import datetime

import humanize


def run(value):
    humanize.i18n.activate("de_DE")
    german = humanize.naturaldelta(datetime.timedelta(days=3))
    humanize.i18n.deactivate()
    return [german, humanize.naturalsize(10**9), humanize.intword(12300000)]
