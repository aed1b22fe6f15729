# requires: pygments
from pygments import highlight
from pygments.formatters import get_formatter_by_name
from pygments.lexers import get_lexer_by_name, guess_lexer_for_filename


def run(value):
    text = "def f(x):\n    return x + 1\n"
    return [
        highlight(text, get_lexer_by_name("python"), get_formatter_by_name("html", style="monokai", noclasses=True)),
        highlight("select 1 from t", guess_lexer_for_filename("a.sql", "select 1"), get_formatter_by_name("latex")),
        highlight("fn main() {}", get_lexer_by_name("rust"), get_formatter_by_name("terminal")),
    ]
