# requires: pyphen
import pyphen


def run(value):
    return [
        pyphen.Pyphen(lang=each).inserted(word)
        for each, word in (("de_DE", "Donaudampfschiff"), ("nl_NL", "lettergrepen"))
    ]
