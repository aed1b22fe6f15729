# requires: parso
import parso


def run(value):
    tree = parso.parse("def f(a, b=1):\n    return a +\n")
    grammar = parso.load_grammar(version="3.12")
    return [[str(each.message) for each in grammar.iter_errors(grammar.parse("x = = 1"))], tree.children[0].name.value]
