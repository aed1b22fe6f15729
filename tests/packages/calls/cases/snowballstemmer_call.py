# requires: snowballstemmer
import snowballstemmer


def run(value):
    return [
        snowballstemmer.stemmer(each).stemWords(words.split())
        for each, words in (("english", "running cats"), ("german", "Häuser laufen"), ("russian", "красивая"))
    ]
