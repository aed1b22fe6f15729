# requires: docutils
from docutils.core import publish_parts


def run(value):
    text = "Titel\n=====\n\n.. note:: Achtung\n\n* *ein* ``zwei``\n\n.. math:: x^2\n"
    return publish_parts(text, writer_name="html5", settings_overrides={"language_code": "de"})["fragment"]
