# requires: html5lib
import html5lib


def run(value):
    tree = html5lib.parse("<p>a<b>c</p>d<table><td>x", treebuilder="dom", namespaceHTMLElements=False)
    etree = html5lib.parse("<p>a<b>c</p>d", namespaceHTMLElements=False)
    return [html5lib.serialize(tree, tree="dom", omit_optional_tags=False), [each.tag for each in etree.iter()]]
