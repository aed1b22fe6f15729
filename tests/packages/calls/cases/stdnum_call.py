# requires: python-stdnum
from stdnum import get_cc_module, iban, isbn
from stdnum.eu import vat


def run(value):
    return [
        iban.is_valid("DE89370400440532013000"),
        isbn.format("9780471117094"),
        vat.is_valid("CZ25123891"),
        get_cc_module("nl", "bsn").is_valid("111222333"),
        iban.format("GR1601101050000010547023795"),
    ]
