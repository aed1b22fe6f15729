"""`select.poll` in a VM, based on epoll, whose waits a stop ends. CPython's own poll object waits where no stop
arrives.

Each wait registers all descriptors with epoll anew, like poll(2): any may have been closed meanwhile, or be another
file now."""

import errno
import select

_LARGEST_MS = 2**31 - 1


class Poll:
    """A polling object: `register`, `modify` and `unregister` descriptors, then `poll` for events."""

    __slots__ = ("_epoll", "_masks", "_waiting")

    def __init__(self):
        self._epoll = select.epoll()  # created once: a new one could reuse the number of a closed descriptor
        self._masks = {}  # descriptor -> events
        self._waiting = False

    def register(self, fd, eventmask=select.POLLIN | select.POLLPRI | select.POLLOUT, /):
        """Wait for events of `fd`, a descriptor or an object with fileno()."""
        self._masks[_descriptor(fd)] = _mask(eventmask)

    def modify(self, fd, eventmask, /):
        """Wait for other events of `fd`. FileNotFoundError: it is not registered."""
        fd, mask = _descriptor(fd), _mask(eventmask)
        if fd not in self._masks:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        self._masks[fd] = mask

    def unregister(self, fd, /):
        """Stop waiting for `fd`. KeyError: it is not registered."""
        fd = _descriptor(fd)
        del self._masks[fd]
        try:
            self._epoll.unregister(fd)
        except OSError:
            pass  # closed, or not yet waited for

    def poll(self, timeout=None, /):
        """The list of (descriptor, events) once there are any, or after `timeout` milliseconds; None or negative: no
        limit."""
        seconds = _seconds(timeout)
        if self._waiting:
            raise RuntimeError("concurrent poll() invocation")
        self._waiting = True
        try:
            return self._wait(seconds)
        finally:
            self._waiting = False

    def _wait(self, seconds):
        masks, found = dict(self._masks), {}
        for fd, mask in masks.items():
            try:
                self._update_epoll(fd, mask)
            except OSError as error:
                if error.errno == errno.EBADF:
                    found[fd] = select.POLLNVAL
                elif error.errno == errno.EPERM:  # a regular file is always ready, but epoll refuses it
                    found[fd] = mask & (select.POLLIN | select.POLLOUT | select.POLLRDNORM | select.POLLWRNORM)
                else:
                    raise
        at_once = any(found.values())
        found.update(self._epoll.poll(0 if at_once else seconds, max(len(masks), 1)))
        return [(fd, found[fd]) for fd in masks if found.get(fd)]

    def _update_epoll(self, fd, mask):
        try:
            self._epoll.modify(fd, mask)
        except FileNotFoundError:
            self._epoll.register(fd, mask)


def _descriptor(fd):
    if not isinstance(fd, int):
        try:
            fileno = fd.fileno
        except AttributeError:
            raise TypeError("argument must be an int, or have a fileno() method.") from None
        fd = fileno()
        if not isinstance(fd, int):
            raise TypeError("fileno() returned a non-integer")
    if fd < 0:
        raise ValueError(f"file descriptor cannot be a negative integer ({fd})")
    if fd > 2**31 - 1:
        raise OverflowError("Python int too large to convert to C int")
    return int(fd)


def _mask(eventmask):
    if not isinstance(eventmask, int):
        raise TypeError(f"'{type(eventmask).__name__}' object cannot be interpreted as an integer")
    if eventmask < 0:
        raise ValueError("value must be positive")
    if eventmask > 0xFFFF:
        raise OverflowError("Python int too large for C unsigned short")
    return int(eventmask)


def _seconds(timeout):
    """`timeout` in seconds, rounded up to milliseconds; negative: no limit."""
    if timeout is None:
        return -1
    if not isinstance(timeout, (int, float)):
        raise TypeError("timeout must be an integer or None")
    if timeout != timeout:
        raise ValueError("Invalid value NaN (not a number)")
    if timeout > _LARGEST_MS:
        raise OverflowError("timeout is too large")
    return -1 if timeout < 0 else -(-timeout // 1) / 1000
