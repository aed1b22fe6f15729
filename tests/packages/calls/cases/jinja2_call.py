# requires: jinja2
from jinja2 import Environment

# compiled where the module is imported, so that the text is recorded
TEMPLATE = Environment(extensions=["jinja2.ext.do"]).from_string(
    "{% for x in xs %}{{ loop.index }}:{{ x|upper }} {% endfor %}"
)


def run(value):
    return TEMPLATE.render(xs=["a", "b"])
