"""The HTTP API as an OpenAPI 3.1 document, served as /api/v1/openapi.json.

`ROUTES` has the request's schema for each method and path; the scope that it needs is declared at its handler
(routes.py). The application checks bodies with the schemas (`checker`); tests compare the two.
"""

import json

import jsonschema

from vmhost.access import ROLES
from vmhost.deployment.errors import DeploymentError
from vmhost.deployment.orders import MAX_NONCE

_TEXT = {"type": "string"}
_WHOLE = {"type": "integer"}
_OBJECT = {"type": "object"}
_TEXTS = {"type": "array", "items": _TEXT}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_SHORT = {"type": "string", "maxLength": 200}
_NAMES = {"type": "array", "items": _SHORT, "maxItems": 1000}
_STATED_TASK = {
    "type": "object",
    "properties": {
        "version": {"type": ["string", "null"], "maxLength": 200},
        "digest": {"type": ["string", "null"], "maxLength": 200},
        "state": {"type": ["string", "null"], "maxLength": 200},
        "release": {"type": ["integer", "null"]},
        "files": {"type": "object", "additionalProperties": _SHORT},
    },
}
_REPORT = {
    "type": "array",
    "prefixItems": [
        _COUNT,
        {
            "type": "object",
            "properties": {
                "release": _COUNT,
                "state": _SHORT,
                "reason": _TEXT,
                "counted": {"type": "object", "additionalProperties": {"type": "number"}},
            },
            "required": ["release", "state"],
        },
    ],
    "minItems": 2,
    "maxItems": 2,
}
_WHY = {"type": "string", "maxLength": 1000, "description": "for the history"}
_LIMIT = {"limit": {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 100}}
_TASK = {"task": {"type": "string", "description": "repository/branch"}}
DEVICE = "device"  # instead of a scope: the device's secret, with its name in X-VMHost-Device

# (method, path below /api/v1): (summary, query, body, required keys of the body)
ROUTES = {
    ("GET", "/openapi.json"): ("This document.", {}, None, ()),
    ("POST", "/device/enrol"): (
        "Enrols a device, with the secret that it generated. With the scope join, and not enrol, an admin decides; "
        "meanwhile the answer says `waiting`.",
        {},
        {"device": _TEXT, "secret": {"type": "string", "minLength": 32, "maxLength": 128}},
        ("device", "secret"),
    ),
    ("POST", "/device/check"): (
        "A device states what it is and has, reports, and is told what it should have, or that this is unchanged.",
        {},
        {
            "facts": _OBJECT,
            "tasks": {
                "type": "object",
                "additionalProperties": _STATED_TASK,
                "description": "task to version, digest, release, state and files",
            },
            "epoch": {"type": "string", "maxLength": 64, "description": "in which the numbers of its reports count"},
            "reports": {
                "type": "array",
                "items": _REPORT,
                "maxItems": 200,
                "description": "[number, {release, state, reason}]",
            },
            "health": {
                "type": "object",
                "additionalProperties": {"type": "array", "items": _COUNT, "minItems": 3, "maxItems": 3},
                "description": "task to [release, calls, failures]",
            },
            "profile": {"type": "string", "maxLength": 200, "description": "what its header VMHost-Tasks says"},
            "nonce": {
                "type": "string",
                "maxLength": MAX_NONCE,
                "description": "a new random text each time: the answer has an order, which is signed for it",
            },
            "base": {
                "type": "string",
                "maxLength": 200,
                "description": "the profile since which facts and tasks are what changed; `again`: state all",
            },
            "gone": {
                "type": "object",
                "properties": {"facts": _NAMES, "tasks": _NAMES},
                "description": "facts and tasks that base had",
            },
            "zstd": {"type": "boolean"},
        },
        (),
    ),
    ("POST", "/device/report"): (
        "A device reports its counts since the last report; the same number again changes nothing.",
        {},
        {
            "epoch": _TEXT,
            "number": _WHOLE,
            "tasks": {"type": "array", "items": _OBJECT, "description": "{task, version, counts, breaker}"},
        },
        ("epoch", "number", "tasks"),
    ),
    ("POST", "/device/crash"): (
        "A device reports a crash: a report as `vmhost crashes` shows it, with a title.",
        {},
        {"id": _TEXT, "fingerprint": _TEXT, "title": _TEXT},
        ("id", "fingerprint", "title"),
    ),
    ("GET", "/whoami"): ("The account, its role, and what the token may do.", {}, None, ()),
    ("GET", "/overview"): ("Devices, tasks, and the releases that matter now.", {}, None, ()),
    ("GET", "/repositories"): ("Names of repositories.", {}, None, ()),
    ("POST", "/repositories"): ("Makes a repository.", {}, {"name": _TEXT}, ("name",)),
    ("GET", "/repositories/{name}/signing"): (
        "Who signs the list of what may run of a repository, and what waits for signatures of its owners.",
        {},
        None,
        (),
    ),
    ("POST", "/repositories/{name}/signatures"): (
        "An owner's signature over what waits, as canonical JSON.",
        {},
        {"keyid": _TEXT, "signature": {"type": "string", "pattern": "^[0-9a-f]{128}$"}},
        ("keyid", "signature"),
    ),
    ("GET", "/versions"): ("Versions, of one task or of all.", _TASK, None, ()),
    ("POST", "/forgive"): (
        "Lets a version that was rolled back be released again.",
        {},
        _TASK | {"version": _TEXT, "why": _WHY},
        ("task", "version"),
    ),
    ("GET", "/releases"): ("Releases, the latest first.", _TASK | _LIMIT, None, ()),
    ("POST", "/releases"): (
        "Starts a release, or queues it.",
        {},
        _TASK
        | {
            "version": _TEXT,
            "plan": {"type": ["object", "null"], "description": "as release.yaml; null: all devices at once"},
            "priority": {"type": ["integer", "null"], "minimum": -1000, "maximum": 10**9},
            "why": _WHY,
        },
        ("task", "version"),
    ),
    ("GET", "/releases/{release}"): ("One release.", {}, None, ()),
    ("GET", "/releases/{release}/devices"): (
        "Its devices, with states and reasons.",
        {"state": _TEXT} | _LIMIT,
        None,
        (),
    ),
    ("POST", "/releases/{release}/retry"): (
        "Offers it once more to a device that failed it or declined.",
        {},
        {"device": _TEXT},
        ("device",),
    ),
    ("POST", "/releases/{release}/{event}"): (
        "pause, resume, halt, roll_back, next or cancel.",
        {},
        {"why": _WHY},
        (),
    ),
    ("POST", "/ask"): (
        "How many known devices an audience has, which, and why not the others.",
        _LIMIT,
        {"audience": _OBJECT, "device": _TEXT} | _TASK,
        (),
    ),
    ("GET", "/stuck"): ("Devices that are not where they should be, and why.", _LIMIT, None, ()),
    ("GET", "/history"): ("Who did what when and why.", _TASK | _LIMIT, None, ()),
    ("GET", "/files"): ("Files beside bundles.", _TASK, None, ()),
    ("POST", "/files"): (
        "Gives devices a file; the request's body is its bytes.",
        _TASK
        | {
            "name": _TEXT,
            "kind": {"type": "string", "enum": ["shared", "exclusive"]},
            "audience": {"type": "string", "description": "JSON"},
        },
        None,
        (),
    ),
    ("DELETE", "/files/{file}"): ("Withdraws a file.", {}, None, ()),
    ("GET", "/devices"): ("Devices by name.", {"after": _TEXT} | _LIMIT, None, ()),
    ("GET", "/devices/{device}"): (
        "One device, with the reason why it has or lacks each release.",
        _LIMIT,
        None,
        (),
    ),
    ("DELETE", "/devices/{device}"): ("Forgets a device; its name can be enrolled again.", {}, None, ()),
    ("PUT", "/devices/{device}/block"): (
        "Refuses a device, known or not, on platform and tunnel until it is unblocked.",
        {},
        {"why": _WHY},
        (),
    ),
    ("DELETE", "/devices/{device}/block"): ("Lets a blocked device come back.", {}, None, ()),
    ("GET", "/blocked"): ("Blocked devices.", {}, None, ()),
    ("GET", "/joins"): ("Devices that ask to join, and those that were refused.", {}, None, ()),
    ("POST", "/joins/{device}/{event}"): (
        "approve or refuse, by the code that the device shows.",
        {},
        {"code": {"type": "string", "maxLength": 64}},
        ("code",),
    ),
    ("GET", "/fleet"): (
        "What devices reported: versions that run, errors by cohort, crashes by cause.",
        {"hours": {"type": "number", "exclusiveMinimum": 0, "maximum": 336, "default": 24}} | _LIMIT,
        None,
        (),
    ),
    ("GET", "/fleet/crashes/{device}/{crash}"): ("One report of a crash.", {}, None, ()),
    ("GET", "/fleet/alerts"): ("Alerts, and for admins their rules.", _LIMIT, None, ()),
    ("PUT", "/fleet/rules"): ("Sets the rules of alerts, as YAML.", {}, {"text": _TEXT}, ("text",)),
    ("GET", "/debug/links"): ("Links that open debugging sessions, the latest first.", _LIMIT, None, ()),
    ("POST", "/debug/links"): (
        "Makes a link that opens one debugging session on a device.",
        {},
        {
            "device": _TEXT,
            "scopes": {"type": "array", "items": _TEXT},
            "valid_s": {"type": "number", "exclusiveMinimum": 0, "maximum": 86400},
            "address": {
                "type": "string",
                "description": "of this platform, as the person who opens the link reaches it",
            },
            "note": {"type": "string", "maxLength": 80},
        },
        ("device", "scopes", "valid_s", "address"),
    ),
    ("DELETE", "/debug/links/{link}"): ("Revokes a link; its session gets no answers any more.", {}, None, ()),
    ("GET", "/cohorts"): ("Named cohorts.", {}, None, ()),
    ("PUT", "/cohorts/{cohort}"): ("Sets a named cohort.", {}, {"devices": _TEXTS}, ("devices",)),
    ("GET", "/accounts"): ("Accounts and their tokens, without secrets.", {}, None, ()),
    ("POST", "/accounts"): (
        "Makes an account; the answer has its token, once.",
        {},
        {"name": _TEXT, "role": {"type": "string", "enum": sorted(ROLES)}},
        ("name", "role"),
    ),
    ("PATCH", "/accounts/{name}"): (
        "Changes its role, or disables it.",
        {},
        {"role": {"type": ["string", "null"]}, "disabled": {"type": ["boolean", "null"]}},
        (),
    ),
    ("POST", "/tokens"): (
        "Makes a token; the answer has it, once.",
        {},
        {
            "account": _TEXT,
            "scopes": {"type": ["array", "null"], "items": _TEXT},
            "label": _TEXT,
            "expires_s": {"type": ["number", "null"], "minimum": 0, "maximum": 10**10},
            "uses": {
                "type": ["integer", "null"],
                "minimum": 1,
                "maximum": 10**9,
                "description": "how many devices may join with it",
            },
        },
        ("account",),
    ),
    ("DELETE", "/tokens/{token}"): ("Revokes a token, by its id.", {}, None, ()),
    ("GET", "/audit"): ("The audit log.", {"subject": _TEXT} | _LIMIT, None, ()),
}
_FAILURES = {
    "400": "the request is invalid",
    "401": "the caller is unknown",
    "403": "the caller may not do this",
    "404": "there is no such resource",
    "409": "refused; the message says what can be done instead",
    "429": "too many requests; Retry-After says when the next one may come",
    "503": "the platform's store cannot be used",
}


def checker(method, path):
    """A function that raises DeploymentError if a request's body does not fit its route."""
    _, _, body, required = ROUTES[method, path.replace(":id", "")]
    if body is None:
        return lambda body: None
    validator = jsonschema.Draft202012Validator(_schema(body, required))

    def check(body):
        error = jsonschema.exceptions.best_match(validator.iter_errors(body))
        if error is not None:
            where = ": ".join(str(each) for each in error.absolute_path) or "the request"
            wanted = json.dumps(error.validator_value)
            if error.validator == "required":
                raise DeploymentError(f"the request: expected {', '.join(error.validator_value)}; {error.message}")
            got = json.dumps(error.instance)[:80]
            if error.validator == "enum":
                raise DeploymentError(f"{where}: expected one of {', '.join(error.validator_value)}; got {got}")
            raise DeploymentError(f"{where}: expected {error.validator} {wanted}, got {got}")

    return check


def _schema(body, required):
    return {"type": "object", "properties": body} | ({"required": list(required)} if required else {})


def document(needs=None):
    """The OpenAPI document as plain data. `needs`: {(method, path): its scope, DEVICE, or None for any account}."""
    paths = {}
    for (method, path), route in ROUTES.items():
        scope = (needs or {}).get((method, path))
        paths.setdefault(f"/api/v1{path}", {})[method.lower()] = _operation(method, path, scope, *route)
    error = {"type": "object", "properties": {"error": _TEXT}, "required": ["error"]}
    return {
        "openapi": "3.1.0",
        "info": {"title": "vmhost deployment platform", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": {"Error": error},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "an account's token"},
                "secret": {"type": "http", "scheme": "bearer", "description": "the secret that a device generated"},
            },
        },
    }


def _operation(method, path, scope, summary, query, body, required):
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": _WHOLE if name in ("release", "file") else _TEXT,
        }
        for name in names
    ]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in query.items()]
    if scope == DEVICE:
        parameters.append({"name": "X-VMHost-Device", "in": "header", "required": True, "schema": _TEXT})
    found = {
        "operationId": f"{method.lower()}{path.replace('/', '_').translate({ord(each): None for each in '{}.'})}",
        "summary": summary,
        "parameters": parameters,
        "responses": {"200": {"description": "done", "content": {"application/json": {"schema": _OBJECT}}}}
        | {
            status: {
                "description": text,
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            }
            for status, text in _FAILURES.items()
        },
    }
    if path != "/openapi.json":
        found["security"] = [{"secret": []} if scope == DEVICE else {"token": []}]
        if scope not in (None, DEVICE):
            found["description"] = f"needs the scope {scope}"
    if body is not None:
        found["requestBody"] = {
            "content": {"application/json": {"schema": _schema(body, required)}},
            "required": bool(required),
        }
    elif (method, path) == ("POST", "/files"):
        found["requestBody"] = {"content": {"application/octet-stream": {}}, "required": True}
    return found
