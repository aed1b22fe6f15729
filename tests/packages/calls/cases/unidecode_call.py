# requires: unidecode
from unidecode import unidecode


def run(value):
    return unidecode("Škoda 北京 Ωμέγα ქართული")
