"""Events: what a user does, in the form in which the pipeline takes, stores and hands it on."""

import msgspec

# gc=False: the collector does not look for cycles through events; contents that refer to their own event would stay.

PAGE_ENTER, PAGE_SCROLL, EXPOSURE, CLICK, PAGE_EXIT = "page_enter", "page_scroll", "exposure", "click", "page_exit"
# Applications add names of their own.
BASIC_EVENTS = (PAGE_ENTER, PAGE_SCROLL, EXPOSURE, CLICK, PAGE_EXIT)


class Event(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """One event.

    `name` says what happened; `time_ms` is event time, milliseconds since 1970 in UTC. `page` is the id of the page it
    happened on and `visit` the id of that visit, both "" for an event outside of pages. `contents` is any value that
    crosses walls. `id`, where given, tells duplicates: an id that is seen again is dropped. `key` says whose event it
    is: a person, a device; state and `forget` go by it.
    """

    name: str
    time_ms: int
    page: str = ""
    visit: str = ""
    contents: object = None
    id: str | None = None
    key: str = ""


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """An event and its `position` in the store: a whole number that grows with each event that was taken.

    `packed`: its contents as plain msgpack; None where they are not at hand, or have a form of vmhost's own.
    """

    position: int
    event: Event
    packed: bytes | None = None
