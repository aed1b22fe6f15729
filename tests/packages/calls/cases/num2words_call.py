# requires: num2words
from num2words import num2words


def run(value):
    return [num2words(1234, lang=each) for each in ("en", "de", "cs", "ja")] + [num2words(3, to="ordinal", lang="fr")]
