"""How often an idle connection is pinged: learned from which connections died."""

from vmhost.tunnel.connection import SILENT, Connection
from vmhost.tunnel.heartbeat import MAX_S, MIN_S, Interval


def simulated(forgets_after_s, hours=24):
    """A day of a device behind something that forgets a connection which is idle for longer than that. (pings,
    connections that were found dead, the interval at the end)"""
    interval, now, pings, dead = Interval(), 0.0, 0, 0
    while now < hours * 3600:
        device, cloud = (
            Connection(client=True, heartbeat_s=interval.seconds, now=now),
            Connection(client=False, now=now),
        )
        device.hello({"epoch": b"x", "received": {}})
        cloud.receive(device.data_to_send(), now)
        cloud.welcome({"epoch": b"y", "received": {}, "time_ms": 0, "device": "d"})
        device.receive(cloud.data_to_send(), now)
        last = now
        while now < hours * 3600:
            now = device.next_tick()
            device.tick(now)
            if device.closed:
                assert device.closed.code == SILENT
                interval.died(device.watch.idle_before_ping_s)
                dead += 1
                break
            data = device.data_to_send()
            if data:
                pings += 1
                forgotten, last = now - last > forgets_after_s, now
                if not forgotten:
                    cloud.receive(data, now)
                    device.receive(cloud.data_to_send(), now + 0.05)
            if device.watch.answered_idle_s is not None:
                interval.survived(device.watch.answered_idle_s)
                device.watch.answered_idle_s = None
                device.watch.heartbeat_s = interval.seconds
    return pings, dead, interval.seconds


def test_where_nothing_forgets_pings_become_rare():
    pings, dead, seconds = simulated(float("inf"))
    assert dead == 0 and seconds == MAX_S and pings < 170


def test_behind_a_gateway_that_forgets_the_interval_settles_below():
    for forgets_after_s in (20, 60, 120, 350):
        pings, dead, seconds = simulated(forgets_after_s)
        assert dead <= 4, "it is learned, not tried again and again"
        assert MIN_S <= seconds <= forgets_after_s and seconds >= min(forgets_after_s * 0.3, 30 * 0.3)
        assert pings < 24 * 3600 / max(MIN_S, forgets_after_s * 0.3)


def test_another_network_is_learned_anew():
    interval = Interval()
    interval.died(20.0)
    for _ in range(20):
        interval.survived(interval.seconds)
    assert interval.seconds <= 16.0
    interval.moved()
    for _ in range(20):
        interval.survived(interval.seconds)
    assert interval.seconds == MAX_S
