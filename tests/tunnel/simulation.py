"""A device, a cloud and a network in simulated time: the real protocol and stores, without sockets and threads.

A *link* is one connection: two queues of bytes. It may be cut for both ends or for one (half-open), and bytes may be
anywhere when that happens. The cloud may still read bytes of an older link when the device has a newer one, as if two
processes serve a device. A killed process loses the contents of its memory; transactions that its store has committed
stay. A store may be copied, and the copy put back later: what the store did in between is forgotten.
"""

import random
import shutil

from vmhost.stores import Database
from vmhost.tunnel import events
from vmhost.tunnel.compression import Compression
from vmhost.tunnel.connection import Connection
from vmhost.tunnel.device_store import DeviceStore
from vmhost.tunnel.inbox import Arrival, Inbox, Transactional
from vmhost.tunnel.limits import Limits
from vmhost.tunnel.pushes import Pushes

NAME = "ann"
# Small ones, so that windows fill and frames travel in fragments.
LIMITS = Limits(message_bytes=60_000, window_bytes=4_000, fragments_bytes=200_000, channels=8)


class Link:
    def __init__(self, device_end, cloud_end):
        self.device_end, self.cloud_end = device_end, cloud_end
        self.up, self.down = bytearray(), bytearray()
        self.device_knows = self.cloud_knows = False  # that the link has ended


class Simulation:
    def __init__(self, folder, *, flight_bytes=2048, copies=False):
        self.copies = copies
        self.now = 1000.0
        self.flight_bytes = flight_bytes
        self.links = []
        self.current = None  # the device's
        self.folder = folder
        self.device_database = self.cloud_database = None
        self.copied = {}  # role -> ({channel: how many it had taken for sending}, bodies that it had received)
        # Without an index of ids, so that only numbers keep a message from being written twice.
        schema = "came", ("CREATE TABLE came (n INTEGER PRIMARY KEY, channel TEXT, id TEXT, body BLOB)",)
        self.device_table, self.cloud_table = Transactional(_remember, schema), Transactional(_remember, schema)
        self.accepted, self.pushed = {}, {}  # channel -> [bodies]
        self.may_miss = set()  # bodies that only a store that was put back had
        self._start_device()
        self._start_cloud()
        self.kept = 0

    def close(self):
        self.store.close()
        self.device_database.close()
        self.cloud_database.close()

    # ---- processes

    def _start_device(self):
        if self.device_database is not None:
            self.device_database.close()
        self.device_database = Database(self.folder / "device")
        self.store = DeviceStore(self.device_database)
        self.store.inbox.prepare([self.device_table])
        self.to_forget = []

    def _start_cloud(self):
        if self.cloud_database is not None:
            self.cloud_database.close()
        self.cloud_database = Database(self.folder / "cloud", shared=True)
        self.inbox, self.pushes = Inbox(self.cloud_database), Pushes(self.cloud_database)
        self.inbox.prepare([self.cloud_table])
        self.to_keep, self.to_drop = [], []

    def kill_device(self):
        """kill -9: connections, and data that was read and not yet written, are lost."""
        for link in self.links:
            link.device_knows = True
        self.current = None
        self._start_device()

    def kill_cloud(self):
        for link in self.links:
            link.cloud_knows = True
        self._start_cloud()

    def copy(self, role):
        """Copies the store of "device" or "cloud", whose process is killed and started again."""
        sent, received, _ = self._traffic(role)
        self.copied[role] = {channel: len(found) for channel, found in sent.items()}, received
        self._stop(role)
        shutil.copyfile(self.folder / role, self.folder / f"{role}-copy")
        self._start(role)

    def put_back(self, role):
        """Puts the copy back. What was received since is forgotten, and what was taken for sending since too, unless
        the other end has it by then."""
        if role not in self.copied:
            return
        sent, received, arrived = self._traffic(role)
        counts, received_then = self.copied[role]
        self.may_miss |= received - received_then
        for channel, bodies in sent.items():
            self.may_miss |= set(bodies[counts.get(channel, 0) :]) - arrived
        self._stop(role)
        (self.folder / f"{role}-lock").unlink()
        shutil.copyfile(self.folder / f"{role}-copy", self.folder / role)
        self._start(role)

    def _traffic(self, role):
        """What a role has taken for sending, {channel: [bodies]}; which bodies it received, and the other end."""
        ends = [(self.accepted, self.received_pushes), (self.pushed, self.arrived)]
        (sent, own), (_, others) = ends if role == "device" else reversed(ends)
        return sent, *({body for bodies in end().values() for body in bodies} for end in (own, others))

    def _stop(self, role):
        if role == "device":
            self.kill_device()
            self.device_database.close()
        else:
            self.kill_cloud()
            self.cloud_database.close()

    def _start(self, role):
        if role == "device":
            self._start_device()
        else:
            self._start_cloud()

    # ---- what applications do

    def send(self, channel, body):
        self.store.put(channel, [body])
        self.accepted.setdefault(channel, []).append(body)
        self.pump_device()

    def push(self, channel, body):
        self.pushes.put(NAME, channel, body)
        self.pushed.setdefault(channel, []).append(body)
        self.pump_cloud()

    # ---- the network

    def connect(self):
        if self.current is not None:
            self.current.device_knows = True
        device_end = Connection(
            client=True, limits=LIMITS, compression=Compression(), flight_bytes=self.flight_bytes, now=self.now
        )
        cloud_end = Connection(
            client=False, limits=LIMITS, compression=Compression(), flight_bytes=self.flight_bytes, now=self.now
        )
        self.current = link = Link(device_end, cloud_end)
        self.links.append(link)
        device_end.hello(
            {
                "epoch": self.store.epoch,
                "epochs": self.store.sent_epochs(),
                "received": self.store.received(),
                "device": NAME,
            }
        )
        self._flush(link)

    def cut(self, link, device=True, cloud=True):
        """The ends that are notified know at once; the other assumes that the connection is alive."""
        link.device_knows = link.device_knows or device
        link.cloud_knows = link.cloud_knows or cloud
        if link is self.current and link.device_knows:
            self.current = None

    def _flush(self, link):
        if not link.device_knows:
            while data := link.device_end.data_to_send(3000):
                link.up += data
        if not link.cloud_knows:
            while data := link.cloud_end.data_to_send(3000):
                link.down += data

    def deliver(self, link, up, size):
        """The next `size` bytes of one direction arrive, also those that were sent before a cut."""
        queue = link.up if up else link.down
        data = bytes(queue[:size])
        del queue[:size]
        if not data:
            return
        if up and not link.cloud_knows:
            for event in link.cloud_end.receive(data, self.now):
                self._at_cloud(link, event)
            assert link.cloud_end.closed is None or link.cloud_end.closed.code == 0, link.cloud_end.closed
        elif not up and not link.device_knows:
            for event in link.device_end.receive(data, self.now):
                self._at_device(link, event)
            assert link.device_end.closed is None or link.device_end.closed.code == 0, link.device_end.closed
        self._flush(link)

    def tick(self, seconds):
        self.now += seconds
        for link in self.links:
            if not link.device_knows:
                link.device_end.tick(self.now)
                if link.device_end.closed:
                    self.cut(link, cloud=False)
            if not link.cloud_knows:
                link.cloud_end.tick(self.now)
                if link.cloud_end.closed:
                    self.cut(link, device=False)
            self._flush(link)

    # ---- the device

    def _at_device(self, link, event):
        if isinstance(event, events.Welcomed):
            reached, _ = self.store.welcomed(event.greeting["received"])
            for channel, number in reached.items():
                link.device_end.resume(channel, number)
            self.pump_device()
        elif isinstance(event, events.Received):
            arrival = Arrival("", event.epoch, event.channel, event.messages, self.device_table)
            self.store.inbox.keep([arrival])
            link.device_end.applied(event.channel, event.messages[-1][0])
        elif isinstance(event, events.Acknowledged):
            self.to_forget.append((event.channel, event.number))
            self.pump_device()

    def forget(self):
        """The device's disk catches up with the acknowledgements."""
        if self.to_forget:
            self.store.acknowledged([self.to_forget.pop(0)])

    def pump_device(self):
        link = self.current
        if link is None or link.device_knows or not link.device_end.open:
            return
        positions = link.device_end.positions()
        for channel in self.store.channels():
            if (taken := self.store.take(channel, positions.get(channel, (0, True))[0])) is not None:
                epoch, entries = taken
                link.device_end.offer(channel, [(each.number, each.id, each.body) for each in entries], epoch)
        self._flush(link)

    # ---- the cloud

    def _at_cloud(self, link, event):
        if isinstance(event, events.Greeted):
            greeting = event.greeting
            link.cloud_end.welcome(
                {
                    "epoch": self.cloud_database.opening,
                    "received": self.inbox.received_of(NAME, [*greeting["epochs"], greeting["epoch"]]),
                    "time_ms": 0,
                    "device": NAME,
                }
            )
            for channel, number in self.pushes.reached(greeting["received"]).items():
                self.to_drop.append((NAME, channel, number))
                link.cloud_end.resume(channel, number)
            self.pump_cloud()
        elif isinstance(event, events.Received):
            self.to_keep.append((link, Arrival(NAME, event.epoch, event.channel, event.messages, self.cloud_table)))
        elif isinstance(event, events.Acknowledged):
            self.to_drop.append((NAME, event.channel, event.number))
            self.pump_cloud()

    def keep(self, count=1):
        """The cloud's disk catches up: a number of arrivals in one transaction, then their acknowledgements."""
        taken, self.to_keep = self.to_keep[:count], self.to_keep[count:]
        if taken:
            self.kept += self.inbox.keep([arrival for _, arrival in taken])
            for link, arrival in taken:
                if not link.cloud_knows:
                    link.cloud_end.applied(arrival.channel, arrival.messages[-1][0])
                    self._flush(link)
        if self.to_drop:
            self.pushes.acknowledge([self.to_drop.pop(0)])

    def pump_cloud(self):
        for link in self.links:
            if link.cloud_knows or not link.cloud_end.open:
                continue
            positions = link.cloud_end.positions()
            for channel in self.pushes.channels(NAME):
                if (taken := self.pushes.take(NAME, channel, positions.get(channel, (0, True))[0])) is not None:
                    epoch, found = taken
                    link.cloud_end.offer(channel, found, epoch)
            self._flush(link)

    # ---- what has to hold

    def arrived(self):
        return _by_channel(self.cloud_database, "SELECT channel, body FROM came ORDER BY n")

    def received_pushes(self):
        return _by_channel(self.device_database, "SELECT channel, body FROM came ORDER BY n")

    def check(self):
        """Nothing twice, nothing out of order, nothing that was not accepted."""
        for found, wanted in ((self.arrived(), self.accepted), (self.received_pushes(), self.pushed)):
            for channel, values in found.items():
                rest = iter(wanted[channel])
                assert all(value in rest for value in values), f"{channel}: twice, or out of order"
                missing = set(rest := wanted[channel][: wanted[channel].index(values[-1])]) - set(values)
                assert missing <= self.may_miss, (
                    f"{channel}: one was passed over, {[rest.index(each) for each in missing]}"
                )

    def settle(self):
        """The network heals, and both ends go on until nothing is left."""
        for link in self.links:
            self.cut(link)
        self.connect()
        for _ in range(10_000):
            link = self.current
            self.deliver(link, True, 1 << 20)
            self.keep(100)
            self.deliver(link, False, 1 << 20)
            self.forget()
            if not (link.up or link.down or self.to_keep or self.to_drop or self.to_forget):
                if not self.store.channels() and not self.pushes.channels(NAME):
                    break
                self.pump_device()
                self.pump_cloud()
        self.check()
        assert not self._lost(self.arrived(), self.accepted), "a message was lost"
        assert not self._lost(self.received_pushes(), self.pushed), "a push was lost"
        assert not self.store.channels(), "acknowledged messages stayed in the outbox"

    def _lost(self, arrived, sent):
        return (
            {body for bodies in sent.values() for body in bodies}
            - self.may_miss
            - {body for bodies in arrived.values() for body in bodies}
        )

    def step(self, chance):
        """One random event; `chance` is a random.Random."""
        what = chance.randrange(100)
        if self.copies and chance.random() < 0.05:
            chance.choice((self.copy, self.put_back))(chance.choice(("device", "cloud")))
            return
        live = [link for link in self.links[-3:] if link.up or link.down]
        if what < 15:
            self.send(chance.choice("ab"), chance.randbytes(chance.choice((10, 200, 3000, 40_000))))
        elif what < 22:
            self.push(chance.choice("pq"), chance.randbytes(chance.choice((10, 200, 5000))))
        elif what < 65 and live:
            link = chance.choice(live)
            self.deliver(link, chance.random() < 0.5, chance.choice((1, 50, 1000, 5000, 20_000)))
        elif what < 80:
            self.keep(chance.randrange(1, 5))
        elif what < 85:
            self.forget()
        elif what < 89 or self.current is None:
            self.connect()
        elif what < 92 and self.links:
            self.cut(chance.choice(self.links[-3:]), *chance.choice(((True, True), (True, False), (False, True))))
        elif what < 94:
            self.tick(chance.choice((0.5, 5.0, 40.0)))
        elif what < 97:
            self.kill_cloud()
        else:
            self.kill_device()


def _remember(connection, messages):
    connection.executemany(
        "INSERT INTO came (channel, id, body) VALUES (?, ?, ?)",
        [(each.channel, each.id, each.body) for each in messages],
    )


def _by_channel(database, query):
    found = {}
    with database.reader() as connection:
        for channel, body in connection.execute(query):
            found.setdefault(channel, []).append(body)
    return found


def run(folder, seed, steps=150, copies=False):
    """A whole random run; raises AssertionError with the seed. `copies`: stores are copied and put back."""
    simulation = Simulation(folder, copies=copies)
    chance = random.Random(seed)
    try:
        simulation.connect()
        for _ in range(steps):
            simulation.step(chance)
            simulation.check()
        simulation.settle()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    finally:
        simulation.close()
