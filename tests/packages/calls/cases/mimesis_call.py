# requires: mimesis
from mimesis import Generic, Locale


def run(value):
    return [
        [Generic(each, seed=5).person.full_name(), Generic(each, seed=5).address.city()]
        for each in (Locale.CS, Locale.JA)
    ]
