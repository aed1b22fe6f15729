"""The docs as a site: `make docs` builds it into build/docs. Sphinx reads the Markdown of this folder as it stands."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site"))

project = "vmhost"
copyright = "the vmhost authors"  # noqa: A001  (Sphinx's name for it)
_OWN = ["commands", "http_api", "parameters"]  # in site/
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click", "sphinx_copybutton", "sphinx_design", *_OWN]
exclude_patterns = ["conf.py", "site"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

default_role = "code"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["ray"]  # 70 MB, and only its name is needed here
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
html_title = "vmhost"
html_logo = html_favicon = "pictures/logo.svg"
_BRAND = ("color-brand-primary", "color-brand-content", "color-api-name", "color-api-pre-name", "color-problematic")
_LIGHT, _DARK = "#2b6cb0", "#63a4e8"  # those of the logo
html_theme_options = {
    "light_css_variables": dict.fromkeys(_BRAND, _LIGHT) | {"color-code-background": "#f5f7fa"},
    "dark_css_variables": dict.fromkeys(_BRAND, _DARK) | {"color-code-background": "#1d2126"},
}
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_show_sphinx = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "github-dark"
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"  # not on output
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"

# `yaml` and `json` blocks of the pages abbreviate here and there.
suppress_warnings = ["misc.highlighting_failure"]

# Pages link to files of the checkout as readers of the repository see it. The site has no address for them.
_CHECKOUT = re.compile(
    r"\[([^\]]*)\]\((?:\.\./)+(?!docs/)((?:(?:tasks|tools|tests|bench|engine|vmhost)/|CHANGELOG|README)[^)]*)\)"
)


def _without_checkout(app, page, source):
    def place(link):
        return link[1] if link[1].strip("`") == link[2] else f"{link[1]} (`{link[2]}` in the checkout)"

    source[0] = _CHECKOUT.sub(place, source[0])


def setup(app):
    app.connect("source-read", _without_checkout)
    return {"parallel_read_safe": True}
