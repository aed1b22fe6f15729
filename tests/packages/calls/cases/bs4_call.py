# requires: beautifulsoup4 html5lib
from bs4 import BeautifulSoup


def run(value):
    return [
        [str(each) for each in BeautifulSoup("<p>a<b class=x>c</p>d", parser).select("b.x")]
        for parser in ("html.parser", "html5lib")
    ]
