"""What a device may state as facts: texts, numbers, true, false, null, and lists of these.

A fact that is something else counts as not stated, and is shown as bad; it does not disturb the other facts, nor other
devices. What is stored is what the device stated, so that both sides compute the same profile.
"""

import json
import math

MAX_TEXT = 1000
MAX_LIST = 100
MAX_FACTS = 200


def loaded(text):
    """The mapping in a stored text; {} if it cannot be read."""
    try:
        found = json.loads(text)
    except ValueError, RecursionError:
        return {}
    return found if isinstance(found, dict) else {}


def divided(stated):
    """(the good facts, {name of a bad one: why})."""
    good, bad = {}, {}
    for number, (name, value) in enumerate(stated.items()):
        why = f"more than {MAX_FACTS} facts" if number >= MAX_FACTS else _why_bad(name, value)
        if why is None:
            good[name] = value
        else:
            bad[_shown(name)] = why
    return good, bad


def _why_bad(name, value):
    if not _is_text(name) or len(name) > 100:
        return "expected a name of at most 100 characters"
    values = value if isinstance(value, list) else [value]
    if len(values) > MAX_LIST:
        return f"expected a list of at most {MAX_LIST}"
    for each in values:
        if isinstance(each, str):
            if not _is_text(each) or len(each) > MAX_TEXT:
                return f"expected a text of at most {MAX_TEXT:,} characters in Unicode"
        elif isinstance(each, float) and not math.isfinite(each):
            return f"expected a finite number, got {each}"
        elif isinstance(each, int) and not -(2**63) <= each < 2**63:
            return "expected a number of at most 64 bits"
        elif each is not None and not isinstance(each, (int, float)):
            return f"expected a text, a number, true, false, or a list of these, got {type(each).__name__}"
    return None


def _is_text(text):
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(name):
    return name[:100].encode(errors="backslashreplace").decode()
