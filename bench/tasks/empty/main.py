"""A task for benchmarks that measure the call itself."""

import threading
import time


def run(value):
    return value


def size(value):
    return len(value)


def last(span_s):
    end = time.perf_counter() + span_s
    while time.perf_counter() < end:
        pass


def spin(_):
    while True:
        pass


def sleep(_):
    time.sleep(60)


def wait(_):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def chew(numbers):
    return sum(range(numbers))  # one call into C: no stop reaches it
