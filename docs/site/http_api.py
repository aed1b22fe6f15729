"""The reference of the platform's HTTP API: each route, from the description that the platform serves."""

from vmhost.deployment.cloud.web import api_document

PAGE = "reference/http-api"
_MARK = "<!-- the routes -->"
_BODY_KEYS = ("minimum", "maximum", "minLength", "maxLength", "maxItems", "default")


def _kind(schema):
    """A schema in a few words."""
    if "enum" in schema:
        return " or ".join(f"`{one}`" for one in schema["enum"])
    kind = schema.get("type", "any")
    kind = " or ".join("null" if one is None else one for one in kind) if isinstance(kind, list) else kind
    if kind == "array" and "type" in schema.get("items", {}):
        kind = f"array of {schema['items']['type']}"
    bounds = [f"{key} {schema[key]}" for key in _BODY_KEYS if key in schema]
    return ", ".join([kind, *bounds, *([schema["description"]] if "description" in schema else [])])


def _rows(operation):
    for parameter in operation["parameters"]:
        yield parameter["name"], parameter["in"], parameter.get("required", False), _kind(parameter["schema"])
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    for name, schema in body.get("properties", {}).items():
        yield name, "body", name in body.get("required", ()), _kind(schema)


def _section(path, method, operation):
    needs = operation.get("description", "")
    text = operation["summary"] + (f" It {needs}." if needs else "")
    rows = [
        f"| `{name}` | {where} | {'yes' if required else ''} | {kind.replace('|', chr(92) + '|')} |"
        for name, where, required, kind in _rows(operation)
    ]
    table = ["", "| name | in | required | |", "| --- | --- | --- | --- |", *rows] if rows else []
    return "\n".join([f"### `{method.upper()} {path}`", text, *table])


def _with_routes(app, page, source):
    if page != PAGE:
        return
    groups = {}
    for path, operations in api_document()["paths"].items():
        name = path.removeprefix("/api/v1/").split("/")[0]
        for method, operation in operations.items():
            groups.setdefault(name, []).append(_section(path, method, operation))
    assert _MARK in source[0], PAGE
    text = "\n\n".join(f"## {name}\n\n" + "\n\n".join(sections) for name, sections in sorted(groups.items()))
    source[0] = source[0].replace(_MARK, text)


def setup(app):
    app.connect("source-read", _with_routes)
    return {"parallel_read_safe": True}
