# requires: pint
import pint

UNITS = pint.UnitRegistry()


def run(value):
    return [
        str((3 * UNITS.meter + 4 * UNITS.centimeter).to("inch")),
        str(UNITS("2 hours").to_base_units()),
        f"{UNITS.Quantity(9.81, 'm/s**2'):~P}",
    ]
