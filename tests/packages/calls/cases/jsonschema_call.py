# requires: jsonschema
import jsonschema


def run(value):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}, "required": ["n"]}
    validator = jsonschema.Draft202012Validator(schema)
    jsonschema.Draft202012Validator.check_schema(schema)
    return [sorted(error.message for error in validator.iter_errors(each)) for each in ({"n": 4}, {"n": 1}, {}, [])]
