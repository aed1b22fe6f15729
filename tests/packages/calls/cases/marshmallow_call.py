# requires: marshmallow
from marshmallow import Schema, ValidationError, fields


class Item(Schema):
    name = fields.Str(required=True)
    when = fields.DateTime()


def run(value):
    try:
        Item().load({"when": "x"})
    except ValidationError as error:
        return [error.messages, Item().dump({"name": "a"})]
