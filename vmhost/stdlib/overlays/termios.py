"""termios without terminal: the names that packages import at their top; every call fails as for a file that is no
terminal. Replaces the standard library's module in a VM. The numbers are those of Linux."""

import errno
import os


class error(Exception):
    pass


def _no_terminal(fd, *unused):
    if not isinstance(fd, int):
        fileno = getattr(fd, "fileno", None)
        if fileno is None:
            raise TypeError("argument must be an int, or have a fileno() method.")
        fd = fileno()
    os.fstat(fd)  # OSError for a closed descriptor or one of another VM
    raise error(errno.ENOTTY, os.strerror(errno.ENOTTY))


def tcgetattr(fd, /):
    _no_terminal(fd)


def tcsetattr(fd, when, attributes, /):
    _no_terminal(fd)


def tcsendbreak(fd, duration, /):
    _no_terminal(fd)


def tcdrain(fd, /):
    _no_terminal(fd)


def tcflush(fd, queue, /):
    _no_terminal(fd)


def tcflow(fd, action, /):
    _no_terminal(fd)


def tcgetwinsize(fd, /):
    _no_terminal(fd)


def tcsetwinsize(fd, winsize, /):
    _no_terminal(fd)


TCSANOW, TCSADRAIN, TCSAFLUSH = 0, 1, 2
TCIFLUSH, TCOFLUSH, TCIOFLUSH = 0, 1, 2
TCOOFF, TCOON, TCIOFF, TCION = 0, 1, 2, 3

IGNBRK, BRKINT, IGNPAR, PARMRK, INPCK, ISTRIP = 0o1, 0o2, 0o4, 0o10, 0o20, 0o40
INLCR, IGNCR, ICRNL, IUCLC, IXON, IXANY, IXOFF, IMAXBEL, IUTF8 = (0o100 << shift for shift in range(9))
OPOST, OLCUC, ONLCR, OCRNL, ONOCR, ONLRET, OFILL, OFDEL = (1 << shift for shift in range(8))
CSIZE, CS5, CS6, CS7, CS8 = 0o60, 0, 0o20, 0o40, 0o60
CSTOPB, CREAD, PARENB, PARODD, HUPCL, CLOCAL = (0o100 << shift for shift in range(6))
ISIG, ICANON, XCASE, ECHO, ECHOE, ECHOK, ECHONL, NOFLSH, TOSTOP = (1 << shift for shift in range(9))
ECHOCTL, ECHOPRT, ECHOKE, FLUSHO, PENDIN, IEXTEN = 0o1000, 0o2000, 0o4000, 0o10000, 0o40000, 0o100000
VINTR, VQUIT, VERASE, VKILL, VEOF, VTIME, VMIN, VSWTC, VSTART = range(9)
VSTOP, VSUSP, VEOL, VREPRINT, VDISCARD, VWERASE, VLNEXT, VEOL2 = range(9, 17)
NCCS = 32
TCGETS, TCSETS, TCSETSW, TCSETSF = range(0x5401, 0x5405)
TIOCSTI, TIOCGWINSZ, TIOCSWINSZ, FIONREAD, TIOCINQ, FIONBIO = 0x5412, 0x5413, 0x5414, 0x541B, 0x541B, 0x5421
TIOCGPGRP, TIOCSPGRP, TIOCNOTTY, TIOCSCTTY, TIOCOUTQ = 0x540F, 0x5410, 0x5422, 0x540E, 0x5411
