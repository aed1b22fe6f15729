"""Events: what a user does, in the form in which the pipeline takes, stores and passes it on."""

import msgspec

# gc=False: the cyclic collector skips events, so contents that refer to their own event would never be freed.

PAGE_ENTER, PAGE_SCROLL, EXPOSURE, CLICK, PAGE_EXIT = "page_enter", "page_scroll", "exposure", "click", "page_exit"
# Applications may add names of their own.
BASIC_EVENTS = (PAGE_ENTER, PAGE_SCROLL, EXPOSURE, CLICK, PAGE_EXIT)


class Event(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """One event.

    `name`: what happened. `time_ms`: event time, milliseconds since 1970 in UTC. `page`: the id of the page on which it
    happened. `visit`: the id of that visit; both are "" for an event outside of pages. `contents`: any value that can
    cross into a VM. `id`: identifies duplicates: an event whose id was seen before is dropped; None: it is none. `key`:
    whose event it is, such as a person's or a device's; state and `forget` go by it.
    """

    name: str
    time_ms: int
    page: str = ""
    visit: str = ""
    contents: object = None
    id: str | None = None
    key: str = ""


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """An event and its `position` in the store: an integer that grows with each event taken.

    `packed`: its contents as plain msgpack; None if they are not at hand, or have types beyond msgpack's.
    """

    position: int
    event: Event
    packed: bytes | None = None
