"""The platform as a Starlette application, which any server can mount: git, files, devices, and the API for people.

/git/NAME                smart HTTP (git_http.py)
/files/ab/abcdef...      what devices pull, with ranges; a static server may take its place
/api/v1/device/...       devices: enrol, check
/debug, /debug/api       debugging a device, by a link (debugging.py)
/api/v1/openapi.json     the API's description (openapi.py)
/api/v1/...              people and programs, with tokens (`Authorization: Bearer`)
"""

import contextlib
import re
import string
from dataclasses import replace
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from vmhost.access import ROLES, AccessDeniedError, AccessError, RateLimit, network_of
from vmhost.cohorts import cohort_of
from vmhost.deployment import strict_json
from vmhost.deployment.artifacts import is_digest
from vmhost.deployment.cloud import openapi
from vmhost.deployment.cloud.audience import Audience, Facts
from vmhost.deployment.cloud.git_http import GitServer
from vmhost.deployment.cloud.plan import WHOLE_FLEET, Plan
from vmhost.deployment.cloud.routes import (
    ACCOUNT,
    DEVICE,
    FLEET,
    LISTED,
    Call,
    Of,
    OfBody,
    Rule,
    public,
    route,
    ruled,
    rules_of,
)
from vmhost.deployment.errors import DeploymentError, MissingError, RefusedError
from vmhost.operations.debugging.pages import other_end
from vmhost.stores import StoreError

_HERE = Path(__file__).parent
MAX_BODY_BYTES = 1 << 20
MAX_FILE_BYTES = 256 << 20
MAX_STRANGERS = 10_000  # addresses whose wrong tokens are counted
_METADATA = re.compile(r"timestamp\.json|[0-9]{1,15}\.[A-Za-z0-9_-]{1,80}\.json")
_PAGE = (
    ("/page.js", "page.js", "text/javascript"),
    ("/page_shared.js", "page_shared.js", "text/javascript"),
    ("/page_fleet.js", "page_fleet.js", "text/javascript"),
    ("/page.css", "page.css", "text/css"),
)
_LINKS = (
    ("/", "page", "Releases", '<a href="fleet">Fleet</a>'),
    ("/fleet", "page_fleet", "Fleet", '<a href="./">Releases</a>'),
)
_NAMED = Of(lambda platform, call: call.parts["name"])
_OF_RELEASE = Of(lambda platform, call: platform.releases.release(call.parts["release"]).task)
_OF_FILE = Of(lambda platform, call: platform.task_files.task_of(call.parts["file"]))
_OF_CRASH = Of(lambda platform, call: platform.fleet.task_of_crash(call.parts["device"], call.parts["crash"]))
# Messages of devices, and the method of Platform that takes each.
_DEVICE_MESSAGES = {
    Rule("POST", "/device/check", None, DEVICE): "check",
    Rule("POST", "/device/report", None, DEVICE): "take_report",
    Rule("POST", "/device/crash", None, DEVICE): "take_crash",
}
JOIN_EVENTS = ("approve", "refuse")
ACTIONS = ("pause", "resume", "halt", "roll_back", "next", "cancel")


def application(platform, *, requests_per_s=50.0, burst=200):
    """The ASGI application over a Platform, which it neither opens nor closes. The rate limit is per caller; those
    without a valid token or secret are counted by their address, apart from the others."""
    limit = RateLimit(requests_per_s, burst)
    api = _Api(platform, limit, RateLimit(requests_per_s, burst, max_keys=MAX_STRANGERS))
    open_to_all = [
        *(Route(path, _page((_HERE / name).read_bytes(), kind)) for path, name, kind in _PAGE),
        *(Route(path, _page(_framed(*of), "text/html")) for path, *of in _LINKS),
        Route("/files/{start}/{digest}", api.file, methods=["GET", "HEAD"]),
        Route("/exclusive/{digest}", api.exclusive, methods=["GET", "HEAD"]),
        Route("/keys/bundles.pub", api.bundle_key, methods=["GET"]),
        Route("/metadata/{name}", api.metadata, methods=["GET", "HEAD"]),
        Route("/api/v1/openapi.json", _openapi, methods=["GET"]),
        Route("/keys/debug.pub", api.debug_key, methods=["GET"]),
        *other_end(api.debug),
    ]
    return Starlette(
        routes=[Mount("/git", app=GitServer(platform, limit)), *map(public, open_to_all), *api.routes()],
    )


def api_document():
    """The API's description as plain data, with the scope that each route needs."""
    rules = [*_DEVICE_MESSAGES, *(rule for rule, _ in rules_of(_Api))]
    needs = {(rule.method, rule.path.replace(":id", "")): rule.scope for rule in rules}
    return openapi.document(needs | {(rule.method, rule.path): openapi.DEVICE for rule in _DEVICE_MESSAGES})


async def _openapi(request):
    return _Json(api_document())


def _framed(name, heading, link):
    """A page in the common frame."""
    page, script = (_HERE / f"{name}.html").read_text(), f'<script src="{name}.js"></script>'
    frame = string.Template((_HERE / "page_frame.html").read_text())
    parts = {"title": heading.lower(), "heading": heading, "link": link, "page": page, "script": script}
    return frame.substitute(parts).encode()


def _page(data, kind):
    policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'"
    headers = {"content-security-policy": policy, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}

    async def page(request):
        return Response(data, media_type=kind, headers=headers)

    return page


class _Json(Response):
    media_type = "application/json"

    def render(self, content):
        return strict_json.written(content)


class _Api:
    def __init__(self, platform, limit, strangers):
        self._platform, self._limit, self._strangers = platform, limit, strangers

    # ---- devices

    async def file(self, request):
        digest = request.path_params["digest"]
        if not is_digest(digest) or digest[:2] != request.path_params["start"]:
            return _failure(404, "no such file")
        path = self._platform.files.path(digest)
        if not await run_in_threadpool(path.exists):
            return _failure(404, "no such file")
        headers = {"cache-control": "public, max-age=31536000, immutable", "etag": f'"{digest}"'}
        return FileResponse(path, media_type="application/octet-stream", headers=headers)

    async def exclusive(self, request):
        digest, query = request.path_params["digest"], request.query_params
        given = [query.get(name, "") for name in ("device", "until", "ticket")]
        path = None
        if is_digest(digest) and self._platform.devices.why_blocked(given[0]) is None:
            path = await run_in_threadpool(self._platform.task_files.open_by_ticket, digest, *given)
        if path is None:
            return _failure(404, "no such file")
        return FileResponse(path, media_type="application/octet-stream", headers={"cache-control": "private, no-store"})

    async def bundle_key(self, request):
        return FileResponse(self._platform.folder / "keys" / "bundles.pub", media_type="text/plain")

    async def debug_key(self, request):
        return PlainTextResponse(self._platform.debugging.public)

    async def debug(self, request, body):
        """A request from a debugging client, identified by its link; it is relayed to the device."""
        peer = request.client.host if request.client else ""
        return await run_in_threadpool(self._platform.debugging.answer, body, peer)

    async def metadata(self, request):
        name = request.path_params["name"]
        path = self._platform.metadata.folder / name
        if not _METADATA.fullmatch(name) or not await run_in_threadpool(path.exists):
            return _failure(404, "no such file")
        return FileResponse(path, media_type="application/json", headers={"cache-control": "no-cache"})

    def _of_device(self, rule, name):
        """The endpoint for a message with a schema, for the platform's method `name(device, secret, body)`."""
        check = openapi.checker(rule.method, rule.path)

        async def endpoint(request):
            device, secret = request.headers.get("x-vmhost-device", ""), _bearer(request)

            async def work():
                await run_in_threadpool(self._platform.devices.identify, device, secret)
                # Counted by address too: others must not use up the device's requests.
                self._count(f"device {device} from {_network(request)}")
                body = await _body(request)

                def act():
                    check(body)
                    return getattr(self._platform, name)(device, secret, body) or {}

                return await run_in_threadpool(act)

            return await self._answer(request, work)

        return endpoint

    # ---- the API for people

    def routes(self):
        def bound(rule, endpoint):
            return ruled(rule, Route(f"/api/v1{rule.path}", endpoint, methods=[rule.method]))

        return [
            *(bound(rule, self._of_device(rule, name)) for rule, name in _DEVICE_MESSAGES.items()),
            *(bound(rule, self._endpoint(rule, getattr(self, name))) for rule, name in rules_of(_Api)),
        ]

    def _endpoint(self, rule, function):
        check = openapi.checker(rule.method, rule.path)

        async def endpoint(request):
            def enter():
                identity = self._identify(request)
                network = _network(request)
                call = Call(identity, request.path_params, request.query_params, scope=rule.scope, network=network)
                self._platform.releases.refresh()
                rule.before_body(self._platform, call)
                return call

            def act(call):
                if not rule.takes_bytes:
                    check(call.body)
                rule.after_body(call)
                return function(call)

            async def work():
                call = await run_in_threadpool(enter)
                body = await (_bytes if rule.takes_bytes else _body)(request)
                return await run_in_threadpool(act, replace(call, body=body))

            return await self._answer(request, work)

        return endpoint

    def _identify(self, request):
        identity = self._platform.access.identify(_bearer(request))
        self._count(f"account {identity.name}")
        return identity

    def _count(self, who):
        wait_s = self._limit.wait_s(who)
        if wait_s:
            raise _TooOftenError(wait_s)

    @contextlib.contextmanager
    def _noted(self, call, action, subject, **details):
        """What the block does, and its line in the audit log: both or neither. Yields the details."""
        with self._platform.releases.change():
            yield details
            self._platform.access.note(call.identity.name, action, subject, **details)

    async def _answer(self, request, work):
        """The result of `work()` as JSON, or its failure."""
        try:
            return _Json(await work())
        except _TooOftenError as error:
            seconds = str(int(error.wait_s) + 1)
            return _failure(429, "too many requests; ask less often", {"retry-after": seconds})
        except AccessDeniedError as error:
            # Slow down guessing, without affecting holders of a token at the same address.
            if not error.known and (wait_s := self._strangers.wait_s(_network(request))):
                return _failure(429, "too many wrong tokens", {"retry-after": str(int(wait_s) + 1)})
            return _failure(403 if error.known else 401, str(error))
        except MissingError as error:
            return _failure(404, str(error))
        except (DeploymentError, AccessError) as error:
            return _failure(409 if isinstance(error, RefusedError) else 400, str(error))
        except UnicodeEncodeError:
            return _failure(400, "expected text in Unicode, got half of a surrogate pair, such as \\ud800 alone")
        except StoreError as error:
            return _failure(503, str(error))

    @route("POST", "/device/enrol", "join", FLEET)
    def _enrol(self, call):
        """Without the scope `enrol`, an admin decides."""
        joined = self._platform.enrol(call.identity, call.body["device"], call.body["secret"], call.network)
        return {"device": call.body["device"], "waiting": not joined}

    @route("GET", "/whoami", None, ACCOUNT)
    def _whoami(self, call):
        return {"name": call.identity.name, "role": call.identity.role, "scopes": list(call.identity.scopes)}

    @route("GET", "/overview", "read", LISTED)
    def _overview(self, call):
        releases = self._platform.releases
        with contextlib.ExitStack() as stack:
            stack.enter_context(releases.database.lock)
            newest = {release.task: release for release in releases.releases.values() if release.state == "done"}
            shown = [
                release.plain()
                for release in reversed(list(releases.releases.values()))
                if release.state in ("queued", "running", "paused", "halted") or release is newest.get(release.task)
                if call.may(release.task)
            ]
            tasks = sorted({version.task for version in releases.versions.values() if call.may(version.task)})
        waiting = [
            {
                "repository": each["repository"],
                "threshold": each["threshold"],
                "signed": len(each["waiting"]["signed_by"]),
                "added": each["waiting"]["added"],
                "removed": each["waiting"]["removed"],
            }
            for each in self._platform.metadata.waiting()
            if call.may(each["repository"])
        ]
        devices = self._platform.devices.count() if call.may("") else None
        return {"devices": devices, "tasks": tasks, "releases": shown, "waiting": waiting}

    @route("GET", "/repositories", "read", LISTED)
    def _repositories(self, call):
        return {"repositories": list(filter(call.may, self._platform.repositories.names()))}

    @route("POST", "/repositories", "admin", FLEET)
    def _add_repository(self, call):
        self._platform.add_repository(call.body.get("name"), call.identity.name)
        return {"name": call.body["name"]}

    @route("GET", "/repositories/{name}/signing", "read", _NAMED)
    def _signing(self, call):
        self._must_be_repository(call.parts["name"])
        return {"repository": call.parts["name"]} | self._platform.metadata.signing(call.parts["name"])

    @route("POST", "/repositories/{name}/signatures", "release", _NAMED)
    def _sign(self, call):
        self._must_be_repository(call.parts["name"])
        listed = self._platform.sign(call.parts["name"], call.body["keyid"], call.body["signature"], call.identity.name)
        names = [] if listed is None else [f"{version.task} {version.version}" for version in listed]
        return {"repository": call.parts["name"], "complete": listed is not None, "listed": names}

    def _must_be_repository(self, name):
        if name not in self._platform.repositories.names():
            raise MissingError(f"{name}: there is no such repository")

    @route("GET", "/versions", "read", LISTED)
    def _versions(self, call):
        task = call.query.get("task")
        return {
            "versions": [
                {
                    "task": version.task,
                    "version": version.version,
                    "commit": version.commit,
                    "who": version.who,
                    "time_ms": version.time_ms,
                    "bad": version.bad,
                    "self_test": version.proof is not None,
                    "bundles": {
                        target: {"digest": digest, "size": size} for target, (digest, size) in version.bundles.items()
                    },
                }
                for version in list(self._platform.releases.versions.values())
                if task in (None, version.task) and call.may(version.task)
            ]
        }

    @route("POST", "/forgive", "release", OfBody("task"))
    def _forgive(self, call):
        self._platform.releases.forgive(call.body["task"], call.body["version"], call.identity.name, _why(call.body))
        return {"task": call.body["task"], "version": call.body["version"]}

    @route("GET", "/releases", "read", LISTED)
    def _releases(self, call):
        engine = self._platform.releases
        with engine.database.lock:
            task = call.query.get("task")
            return {
                "releases": [
                    each.plain()
                    for each in reversed(list(engine.releases.values()))
                    if task in (None, each.task) and call.may(each.task)
                ][: _limit(call.query)]
            }

    @route("POST", "/releases", "release", OfBody("task"))
    def _start(self, call):
        task = call.body["task"]
        plan = Plan.of(call.body.get("plan") or WHOLE_FLEET, "plan")
        with self._noted(call, "release", f"{task} {call.body['version']}") as details:
            release = self._platform.releases.start(
                task, call.body.get("version"), plan, call.identity.name, _why(call.body), call.body.get("priority")
            )
            details["release"] = release.id
        return release.plain()

    @route("GET", "/releases/{release:id}", "read", _OF_RELEASE)
    def _release(self, call):
        with self._platform.database.lock:  # only committed state is shown
            return self._platform.releases.release(call.parts["release"]).plain()

    @route("GET", "/releases/{release:id}/devices", "read", _OF_RELEASE)
    def _release_devices(self, call):
        state = call.query.get("state")
        return {"devices": self._platform.releases.devices_of(call.parts["release"], state, _limit(call.query))}

    @route("POST", "/releases/{release:id}/retry", "release", _OF_RELEASE)
    def _retry(self, call):
        self._platform.releases.retry(str(call.body.get("device")), call.parts["release"], call.identity.name)
        return {"device": call.body["device"]}

    @route("POST", "/releases/{release:id}/{event}", "release", _OF_RELEASE)
    def _act(self, call):
        event, why = call.parts["event"], _why(call.body)
        if event not in ACTIONS:
            raise MissingError(f"{event}: expected one of {', '.join(ACTIONS)}")
        release = self._platform.releases.release(call.parts["release"])
        with self._noted(call, event, f"{release.task} {release.version.version}", release=release.id, why=why):
            release = self._platform.releases.act(release.id, event, call.identity.name, why)
        return release.plain()

    @route("POST", "/ask", "read", FLEET)
    def _ask(self, call):
        """The known devices in an audience, their number, and why the others are not: a check before using it."""
        audience, task = Audience(call.body.get("audience")), str(call.body.get("task", ""))
        devices, after, matching, reasons = self._platform.devices, "", [], {}
        asked = call.body.get("device")
        number = count = 0
        with self._platform.database.reader() as connection:
            while page := devices.list(after=after, limit=1000):
                for each in page:
                    number += 1
                    name = each["device"]
                    about = Facts(name, each["facts"], cohort_of(task, name), devices.named(connection, name))
                    why_not = audience.why_not(about)
                    if why_not is None:
                        count += 1
                        matching += [name] if len(matching) < _limit(call.query) else []
                    if name == asked or (asked is None and why_not is not None and len(reasons) < _limit(call.query)):
                        reasons[name] = why_not or "it is in the audience"
                after = page[-1]["device"]
        return {"known": number, "matching": count, "devices": matching, "reasons": reasons}

    @route("GET", "/debug/links", "debug", FLEET)
    def _debug_links(self, call):
        return {"links": self._platform.debugging.links(_limit(call.query))}

    @route("POST", "/debug/links", "debug", FLEET)
    def _make_debug_link(self, call):
        device = call.body["device"]
        self._platform.devices.get(device)
        given = (call.body["scopes"], call.body["valid_s"], call.body["address"], call.body.get("note", ""))
        link = self._platform.debugging.make(call.identity.name, device, *given)
        return {"link": link.text, "id": link.id, "scopes": list(link.scopes), "expires_s": link.expires_s}

    @route("DELETE", "/debug/links/{link}", "debug", FLEET)
    def _revoke_debug_link(self, call):
        return self._platform.debugging.revoke(call.parts["link"], call.identity.name)

    @route("GET", "/files", "read", LISTED)
    def _files(self, call):
        return {
            "files": [file for file in self._platform.task_files.list(call.query.get("task")) if call.may(file["task"])]
        }

    @route("POST", "/files", "release", Of(lambda platform, call: call.query.get("task", "")), takes_bytes=True)
    def _add_file(self, call):
        """The request's body is the file; the query has its attributes."""
        query = call.query
        try:
            audience = strict_json.read(query.get("audience", "{}").encode())
        except ValueError as error:
            raise RefusedError(f"audience: not JSON: {error}") from None
        what = (query.get("task"), query.get("name"), query.get("kind", "shared"))
        return {"id": self._platform.add_file(*what, call.body, audience, call.identity.name)}

    @route("DELETE", "/files/{file:id}", "release", _OF_FILE)
    def _remove_file(self, call):
        self._platform.remove_file(call.parts["file"], call.identity.name)
        return {"id": call.parts["file"]}

    @route("GET", "/stuck", "read", LISTED)
    def _stuck(self, call):
        return {"devices": self._platform.stuck(_limit(call.query), call.may)}

    @route("GET", "/history", "read", LISTED)
    def _history(self, call):
        return {"history": self._platform.releases.history(call.query.get("task"), _limit(call.query), call.may)}

    @route("GET", "/devices", "read", FLEET)
    def _devices(self, call):
        return {"devices": self._platform.devices.list(after=call.query.get("after", ""), limit=_limit(call.query))}

    @route("GET", "/devices/{device}", "read", FLEET)
    def _device(self, call):
        """All that is known of one device, and why it has or lacks each release."""
        known = self._platform.devices.get(call.parts["device"])
        engine, device = self._platform.releases, call.parts["device"]
        with engine.database.lock, self._platform.database.reader() as connection:
            named = self._platform.devices.named(connection, device)
            rows = connection.execute(
                "SELECT release, state, reason, since_ms FROM deploy_assignments WHERE device = ?", (device,)
            )
            mine = {release: rest for release, *rest in rows}
            releases = []
            for release in reversed(list(engine.releases.values())):
                about = Facts(device, known["facts"], cohort_of(release.task, device), named)
                state, reason, since_ms = mine.get(release.id, (None, "", None))
                releases.append(
                    {
                        "release": release.id,
                        "task": release.task,
                        "version": release.version.version,
                        "state": state,
                        "reason": reason,
                        "since_ms": since_ms,
                        "why_not": engine.why_not(release, about, state),
                    }
                )
        return known | {"cohorts": sorted(named), "releases": releases[: _limit(call.query)]}

    @route("DELETE", "/devices/{device}", "admin", FLEET)
    def _forget(self, call):
        with self._noted(call, "device forgotten", call.parts["device"]):
            self._platform.devices.forget(call.parts["device"])
        return {"device": call.parts["device"]}

    @route("PUT", "/devices/{device}/block", "admin", FLEET)
    def _block(self, call):
        device, why = call.parts["device"], _why(call.body)
        try:
            with self._noted(call, "device blocked", device, why=why):
                self._platform.devices.block(device, why, call.identity.name)
        finally:
            self._platform.devices.load_blocked()
        return {"device": device}

    @route("DELETE", "/devices/{device}/block", "admin", FLEET)
    def _unblock(self, call):
        try:
            with self._noted(call, "device unblocked", call.parts["device"]):
                self._platform.devices.unblock(call.parts["device"])
        finally:
            self._platform.devices.load_blocked()
        return {"device": call.parts["device"]}

    @route("GET", "/blocked", "read", FLEET)
    def _blocked(self, call):
        return {"blocked": self._platform.devices.blocked()}

    @route("GET", "/joins", "admin", FLEET)
    def _joins(self, call):
        return {"joins": self._platform.joins.list()}

    @route("POST", "/joins/{device}/{event}", "admin", FLEET)
    def _decide_join(self, call):
        device, event, code = call.parts["device"], call.parts["event"], call.body["code"]
        if event not in JOIN_EVENTS:
            raise MissingError(f"{event}: expected {' or '.join(JOIN_EVENTS)}")
        decide = self._platform.joins.approve if event == "approve" else self._platform.joins.refuse
        decide(device, code, call.identity.name)
        return {"device": device}

    @route("GET", "/fleet", "read", LISTED)
    def _fleet(self, call):
        """What devices reported in the last `hours`."""
        fleet, may, hours = self._platform.fleet, call.may, _hours(call.query)
        return {
            "hours": hours,
            "adoption": fleet.adoption(may),
            "sums": fleet.sums(hours, may=may)[: _limit(call.query)],
            "crashes": fleet.crashes(hours, may, _limit(call.query)),
        }

    @route("GET", "/fleet/crashes/{device}/{crash}", "read", _OF_CRASH)
    def _fleet_crash(self, call):
        return self._platform.fleet.crash(call.parts["device"], call.parts["crash"])

    @route("GET", "/fleet/alerts", "read", LISTED)
    def _alerts(self, call):
        found = {"alerts": self._platform.alerts.list(call.may, _limit(call.query))}
        if call.identity.may("admin"):  # the webhook's address may have a secret
            found["rules"] = self._platform.alerts.rules()
        return found

    @route("PUT", "/fleet/rules", "admin", FLEET)
    def _set_rules(self, call):
        with self._noted(call, "alert rules set", "fleet") as details:
            names = self._platform.alerts.set_rules(call.body.get("text"), call.identity.name)
            details["rules"] = len(names)
        return {"rules": names}

    @route("GET", "/cohorts", "read", FLEET)
    def _cohorts(self, call):
        return {"cohorts": self._platform.devices.cohorts()}

    @route("PUT", "/cohorts/{cohort}", "release", FLEET)
    def _set_cohort(self, call):
        devices = call.body.get("devices")
        if not isinstance(devices, list):
            raise RefusedError("devices: expected a list of names")
        with self._noted(call, "cohort set", call.parts["cohort"], devices=len(devices)):
            self._platform.devices.set_cohort(call.parts["cohort"], devices)
        self._platform.releases.announce()
        return {"cohort": call.parts["cohort"], "devices": len(devices)}

    @route("GET", "/accounts", "admin", FLEET)
    def _accounts(self, call):
        return {"accounts": self._platform.access.accounts(), "roles": ROLES}

    @route("POST", "/accounts", "admin", FLEET)
    def _add_account(self, call):
        access = self._platform.access
        access.add_account(call.body.get("name"), call.body.get("role"), call.identity.name)
        return {
            "name": call.body["name"],
            "token": access.add_token(call.body["name"], call.identity.name, label="first"),
        }

    @route("PATCH", "/accounts/{name}", "admin", FLEET)
    def _change_account(self, call):
        self._platform.access.change_account(
            call.parts["name"], call.identity.name, role=call.body.get("role"), disabled=call.body.get("disabled")
        )
        return {"name": call.parts["name"]}

    @route("POST", "/tokens", "admin", FLEET)
    def _add_token(self, call):
        token = self._platform.access.add_token(
            str(call.body.get("account")),
            call.identity.name,
            scopes=call.body.get("scopes"),
            label=str(call.body.get("label", "")),
            expires_s=call.body.get("expires_s"),
            uses=call.body.get("uses"),
        )
        return {"account": call.body["account"], "token": token}

    @route("DELETE", "/tokens/{token}", "admin", FLEET)
    def _revoke(self, call):
        self._platform.revoke_token(call.parts["token"], call.identity.name)
        return {"token": call.parts["token"]}

    @route("GET", "/audit", "admin", FLEET)
    def _audit(self, call):
        return {"audit": self._platform.access.audit(subject=call.query.get("subject"), limit=_limit(call.query))}


class _TooOftenError(Exception):
    def __init__(self, wait_s):
        super().__init__(wait_s)
        self.wait_s = wait_s


async def _bytes(request):
    """The request's bytes; RefusedError beyond MAX_FILE_BYTES."""
    parts, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_FILE_BYTES:
            raise RefusedError(f"the file has more than {MAX_FILE_BYTES:,} bytes")
        parts.append(chunk)
    return b"".join(parts)


async def _body(request):
    """The request's JSON object; {} without a body. RefusedError."""
    if request.method in ("GET", "HEAD", "DELETE"):
        return {}
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise RefusedError(f"the request has more than {MAX_BODY_BYTES:,} bytes")
    try:
        body = strict_json.read(data or b"{}")
    except ValueError as error:
        raise RefusedError(f"the request is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RefusedError("the request: expected a JSON object")
    return body


def _network(request):
    return network_of(request.client.host) if request.client else ""


def _bearer(request):
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _why(body):
    why = body.get("why", "")
    if not isinstance(why, str) or len(why) > 1000:
        raise RefusedError("why: expected a text of at most 1000 characters")
    return why


def _hours(query):
    try:
        hours = float(query.get("hours", 24))
        if 0 < hours <= 14 * 24:
            return hours
    except ValueError:
        pass
    raise RefusedError(f"hours: expected a number above 0, at most {14 * 24}, got {query['hours']!r:.40}")


def _limit(query):
    try:
        return max(1, min(10_000, int(query.get("limit", 100))))
    except ValueError:
        raise RefusedError(f"limit: expected a whole number, got {query['limit']!r:.40}") from None


def _failure(status, message, headers=None):
    if status == 404 and message == "no such file":
        return Response(message, 404, media_type="text/plain")
    shown = message.encode(errors="backslashreplace").decode()  # it may quote the request
    return _Json({"error": shown}, status, headers)
