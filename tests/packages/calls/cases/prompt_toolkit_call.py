# requires: prompt-toolkit
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import HTML, fragment_list_to_text, to_formatted_text


def run(value):
    return [
        fragment_list_to_text(to_formatted_text(HTML("<b>a</b> <i>c</i>"))),
        Document("hello world", 7).get_word_under_cursor(),
    ]
