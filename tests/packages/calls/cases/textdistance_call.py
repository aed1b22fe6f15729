# requires: textdistance
import textdistance


def run(value):
    return [
        textdistance.levenshtein("kitten", "sitting"),
        textdistance.jaro_winkler("martha", "marhta"),
        textdistance.lcsseq("abcd", "acd"),
    ]
