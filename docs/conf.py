"""The docs as a site: `make docs` builds it into build/docs. Sphinx reads the Markdown of this folder as it stands."""

import dataclasses
import re

import click

from vmhost.cli import vmhost_command

project = "vmhost"
copyright = "the vmhost authors"  # noqa: A001  (Sphinx's name for it)
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click"]
exclude_patterns = ["conf.py"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
html_title = "vmhost"
html_logo = html_favicon = "pictures/logo.svg"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#2b6cb0", "color-brand-content": "#2b6cb0"},
    "dark_css_variables": {"color-brand-primary": "#63a4e8", "color-brand-content": "#63a4e8"},
}
html_static_path = []
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "native"

# `yaml` and `json` blocks of the pages abbreviate here and there.
suppress_warnings = ["misc.highlighting_failure"]

# Pages link to files of the checkout as readers of the repository see it. The site has no address for them.
_CHECKOUT = re.compile(
    r"\[([^\]]*)\]\((?:\.\./)+(?!docs/)((?:tasks|tools|tests|bench|engine|vmhost|CHANGELOG|README)[^)]*)\)"
)


def _without_checkout(app, page, source):
    def place(link):
        return link[1] if link[1].strip("`") == link[2] else f"{link[1]} (`{link[2]}` in the checkout)"

    source[0] = _CHECKOUT.sub(place, source[0])


def _imported(group):
    """Imports each command of a click group, which the command line does when one is used, and gives it the name by
    which it is called: the functions of most are named `command`."""
    with click.Context(group) as context:
        group.commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    for name, command in group.commands.items():
        command.name = name
        if isinstance(command, click.Group):
            _imported(command)


# Made by hosts, never by programs: how to make one is not shown.
_MADE_BY_HOSTS = ("Task", "TaskFuture")
# Defaults that depend on the machine.
_COUNTED = {"cores": "CPUs", "max_warm": "max(2, CPUs)", "boots_at_once": "max(2, CPUs)"}


def _with_all_defaults(app, what, name, cls, options, signature, returned):
    """The signature of a class with the defaults that Python leaves out (`<factory>`), and sizes in MiB."""
    if signature and (what == "exception" or what == "class" and cls.__name__ in _MADE_BY_HOSTS):
        return "", None
    if not (what == "class" and dataclasses.is_dataclass(cls) and signature):
        return None
    for field in dataclasses.fields(cls):
        if field.default_factory is not dataclasses.MISSING:
            made = field.default_factory()
            default = _COUNTED.get(field.name) or (repr(made) if made == {} else f"{type(made).__name__}()")
            signature, count = re.subn(rf"(\b{field.name}: [^=]*= )<factory>", rf"\g<1>{default}", signature)
            assert count == 1, (name, field.name)
    return re.sub(r"\b\d{7,}\b", lambda size: f"{int(size[0]) >> 20} << 20", signature), None


def setup(app):
    _imported(vmhost_command)
    app.connect("source-read", _without_checkout)
    app.connect("autodoc-process-signature", _with_all_defaults)
    return {"parallel_read_safe": True}
