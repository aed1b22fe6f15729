# requires: lark
from lark import Lark

GRAMMAR = """
%import common.NUMBER
%import common.WS
%ignore WS
start: NUMBER ("+" NUMBER)*
"""


def run(value):
    return [Lark(GRAMMAR, parser=each).parse("1 + 2 + 3").pretty() for each in ("lalr", "earley")]
