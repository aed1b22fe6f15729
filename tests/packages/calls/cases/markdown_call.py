# requires: markdown
import markdown


def run(value):
    text = "# A\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nx = 1\n```\n\n[^1]: note\n\nsee[^1]\n"
    return markdown.markdown(text, extensions=["tables", "fenced_code", "footnotes", "markdown.extensions.toc"])
