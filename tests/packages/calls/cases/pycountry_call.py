# requires: pycountry
import pycountry


def run(value):
    germany = pycountry.countries.get(alpha_2="DE")
    subdivision = pycountry.subdivisions.get(code="DE-BY")
    return [germany.name, subdivision.name, pycountry.languages.get(alpha_3="ces").name, len(pycountry.currencies)]
