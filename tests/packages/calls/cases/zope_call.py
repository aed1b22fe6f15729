# requires: zope.interface
from zope.interface import Interface, implementer, providedBy
from zope.interface.verify import verifyObject


class IShape(Interface):
    def area():
        """The area."""


@implementer(IShape)
class Square:
    def area(self):
        return 4


def run(value):
    return [verifyObject(IShape, Square()), [each.__name__ for each in providedBy(Square())]]
