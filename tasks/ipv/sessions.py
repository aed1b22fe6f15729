"""Generates the events of shoppers in a shop, from a seed: `python -m tasks.ipv.sessions --visits 1000 > events.jsonl`.

One JSON object per line, with the fields of an event of the pipeline (name, time_ms, page, visit, contents, id, key),
in order of arrival. The same options give the same lines on any machine. Everything is made up: no real shop, item or
person is behind it.

Behaviour (`random.Random`, true times in ms): - Sessions begin as a Poisson process, `sessions_per_minute`. Each
belongs to one of `visits / 25 + 1` shoppers, who like   one to three categories and a price level.
- A session begins with the home page (50 %), a search (35 %) or a message that links to an item (15 %), then goes to
  items, each followed by another with probability 0.8; one in five is preceded by a further search. A shopper with
  items in the cart looks at it at the end, and half of those order.
- An item is drawn from the shopper's categories (80 %) or by its sales alone. The better it suits, the longer the
  visit: lognormal, median 20 s to 46 s, sigma 0.8, from 0.6 s to 15 min.
- During a visit of an item: scrolls as a Poisson process, one in 6 s, at most 20, one in five upwards; each of 12 items
  shown besides it is an exposure when it first comes onto the screen; clicks, one in 12 s, at most 9; favourite (3 to
  25 %), cart (2 to 18 %) and immediate order (1 to 5 %) are more likely the better the item suits.

Faults, each an option with a share: exits that never come (of visits), a visit opened from within another (of visits of
items; the outer one goes on afterwards), bots (sessions of 40 items, 150 ms each), events that arrive twice, events
that arrive up to ten minutes late, device clocks that are off (a normal deviation per session) or jump back by up to a
minute (of sessions).
"""

import argparse
import dataclasses
import heapq
import itertools
import json
import math
import random
import sys

ITEMS, CATEGORIES, BRANDS, SHOPS = 400, 16, 40, 30
SHOP_SEED = 7  # the shop does not depend on the sessions' seed
SLOTS = 12
WORDS = (
    "cotton linen oak steel ceramic folding portable classic light compact woven matte travel garden kitchen winter "
    "summer double pocket wide slim quiet solid bright"
).split()
THINGS = (
    "lamp kettle jacket backpack chair shelf speaker keyboard blanket bottle tent watch sandal notebook pillow mixer"
).split()


@dataclasses.dataclass(frozen=True)
class Options:
    """The parameters of a stream; shares are from 0 to 1. `visits`: the minimum number of visits of item pages."""

    seed: int = 1
    visits: int = 1000
    start_ms: int = 1_790_000_000_000
    sessions_per_minute: float = 6.0
    missing_exits: float = 0.03
    nested: float = 0.06
    bots: float = 0.005
    duplicates: float = 0.01
    late: float = 0.005
    skew_ms: float = 500.0
    clock_jumps: float = 0.01


CLEAN = {"missing_exits": 0.0, "bots": 0.0, "duplicates": 0.0, "late": 0.0, "skew_ms": 0.0, "clock_jumps": 0.0}


def catalogue():
    """The shop's items: dicts with id, title, category, brand, shop, price_cents and sales (share of all sales)."""
    dice = random.Random(SHOP_SEED)
    ranks = dice.sample(range(ITEMS), ITEMS)
    weights = [1 / (8 + rank) ** 0.8 for rank in ranks]
    items = []
    for number, weight in enumerate(weights):
        category = dice.randrange(CATEGORIES)
        items.append(
            {
                "id": f"item-{number:04}",
                "title": f"{' '.join(dice.sample(WORDS, 4))} {THINGS[category]}, {dice.choice(WORDS)} edition",
                "category": THINGS[category],
                "brand": f"brand-{dice.randrange(BRANDS):02}",
                "shop": f"shop-{dice.randrange(SHOPS):02}",
                "price_cents": round(dice.lognormvariate(math.log(4000), 0.9)),
                "sales": weight / sum(weights),
            }
        )
    return items


def events(options):
    """The events of a stream, as dicts, in order of arrival."""
    dice = random.Random(f"{options.seed} arrivals")
    waiting, order, count, began = [], itertools.count(), 0, float(options.start_ms)
    market = _Market(options)
    for number in itertools.count():
        while waiting and (waiting[0][0] <= began or count >= options.visits):
            yield heapq.heappop(waiting)[2]
        if count >= options.visits:
            return
        session = _Session(market, number, int(began))
        count += session.items_seen
        arrived = 0.0
        for time, event in session.delivered():
            arrived = max(arrived, time + dice.lognormvariate(math.log(60), 0.5))
            at = arrived + dice.uniform(10_000, 600_000) if dice.random() < options.late else arrived
            heapq.heappush(waiting, (at, next(order), event))
            if dice.random() < options.duplicates:
                heapq.heappush(waiting, (at + dice.uniform(0, 5000), next(order), event))
        began += dice.expovariate(options.sessions_per_minute / 60_000)


class _Market:
    """The shop and its shoppers."""

    def __init__(self, options):
        self.options, self.items = options, catalogue()
        self.sales = list(itertools.accumulate(item["sales"] for item in self.items))
        self.shoppers = options.visits // 25 + 1
        self._known = {}

    def shopper(self, number):
        """A shopper's key, how well each item suits (0 to 1), and cumulative weights for drawing."""
        if number not in self._known:
            dice = random.Random(f"{self.options.seed} shopper {number}")
            liked = dice.sample(THINGS, dice.randint(1, 3))
            price = dice.lognormvariate(math.log(4000), 0.7)
            suits = [
                (item["category"] in liked) * math.exp(-abs(math.log(item["price_cents"] / price)))
                for item in self.items
            ]
            weights = itertools.accumulate(item["sales"] * suit**2 for item, suit in zip(self.items, suits))
            self._known[number] = f"shopper-{number:05}", suits, list(weights)
        return self._known[number]


class _Session:
    """The behaviour of one shopper from the first page to the last; `items_seen` counts visits of items."""

    def __init__(self, market, number, began):
        self.dice = random.Random(f"{market.options.seed} session {number}")
        self.market, self.options, self.name = market, market.options, f"{market.options.seed}-{number:06}"
        self.key, self.suits, self.liked = market.shopper(self.dice.randrange(market.shoppers))
        self.now, self.done, self.items_seen, self.visits, self.cart = began, [], 0, 0, []
        self.context = self._context()
        if self.dice.random() < self.options.bots:
            self._bot(number)
        else:
            self._walk()

    def delivered(self):
        """Pairs of true time and event; the event's own time is by the device's clock."""
        skew = self.dice.gauss(0, self.options.skew_ms)
        self.done.sort(key=lambda one: one[0])
        jump_at = self.dice.randrange(len(self.done)) if self.dice.random() < self.options.clock_jumps else None
        for number, (time, event) in enumerate(self.done):
            if number == jump_at:
                skew -= self.dice.uniform(1000, 60_000)
            yield time, {**event, "time_ms": int(time + skew)}

    # ---- the pages of a session

    def _walk(self):
        dice = self.dice
        source = dice.choices(("home", "search", "message"), (50, 35, 15))[0]
        if source != "message":
            self._list_page(source, "message" if source == "search" else "start")
        while True:
            self._item_page(self._picked(), source)
            if dice.random() > 0.8:
                break
            if dice.random() < 0.2:
                self._list_page("search", "item")
                source = "search"
        if self.cart:
            self._cart_page()

    def _bot(self, number):
        self.key = f"bot-{number:06}"
        for _ in range(40):
            item, visit = self._picked(), self._visit()
            self._record("page_enter", "item", visit, item=_public(item), **{"from": "search"})
            self.now += 150
            self._record("page_exit", "item", visit, item=_public(item))
            self.items_seen += 1

    def _list_page(self, page, source):
        visit, dice = self._visit(), self.dice
        self._record("page_enter", page, visit, **{"from": source})
        if page == "home":
            self._record("recommendations", page, visit, wanted=10)
        for slot in range(dice.randint(3, 12)):
            self.now += int(dice.expovariate(1 / 900))
            self._record(
                "exposure", page, visit, area="list", slot=slot, shown=self._picked()["id"], visible_ms=self._visible()
            )
        self.now += int(dice.lognormvariate(math.log(4000), 0.6))
        self._leave(page, visit)

    def _cart_page(self):
        visit = self._visit()
        self._record("page_enter", "cart", visit, lines=len(self.cart), **{"from": "item"})
        self._record("recommendations", "cart", visit, wanted=10)
        self.now += int(self.dice.lognormvariate(math.log(12_000), 0.6))
        ordered = self.dice.random() < 0.5
        if ordered:
            self._record("click", "cart", visit, target="checkout")
        self._leave("cart", visit)
        if ordered:
            visit = self._visit()
            self._record("page_enter", "order", visit, **{"from": "cart"})
            for item, pieces in self.cart:
                self._record("order", "order", visit, of=item["id"], **_sold(item, pieces))
            self.now += 6000
            self._leave("order", visit)

    def _item_page(self, item, source, nested=False):
        dice, visit = self.dice, self._visit()
        self.items_seen += 1
        suit = self.suits[self.market.items.index(item)]
        dwell = min(max(dice.lognormvariate(math.log(20_000 + 26_000 * suit), 0.8), 600), 900_000)
        height, viewport = dice.randrange(4000, 11_000), self.context["device"]["screen_px"][1]
        shown = [self._picked() for _ in range(SLOTS)]
        plan = [(time, self._scrolled) for time in _process(dice, dwell, 6000, 20)]
        plan += [(time, self._clicked) for time in _process(dice, dwell, 12_000, 9)]
        for happens, least, most in (
            (self._favoured, 0.03, 0.25),
            (self._carted, 0.02, 0.18),
            (self._bought, 0.01, 0.05),
        ):
            if dice.random() < least + (most - least) * suit:
                plan.append((dice.uniform(0.3, 1) * dwell, happens))
        if not nested and dice.random() < self.options.nested:
            plan.append((dice.uniform(0.5, 0.95) * dwell, self._looked_elsewhere))
        state = {"item": item, "visit": visit, "height": height, "viewport": viewport, "offset": 0, "shown": shown}
        state["exposed"] = 0
        self._record_on_item(state, "page_enter", **{"from": source})
        self._expose(state)
        began, away = self.now, 0
        for time, happens in sorted(plan, key=lambda one: one[0]):
            self.now = max(self.now, began + away + int(time))
            away += happens(state) or 0
        self.now = max(self.now, began + away + int(dwell))
        if dice.random() >= self.options.missing_exits:
            self._record_on_item(state, "page_exit")
        self.now += int(dice.expovariate(1 / 1500))

    # ---- on an item's page: each method takes the page's state, and returns the time spent elsewhere

    def _scrolled(self, state):
        step = int(self.dice.lognormvariate(math.log(700), 0.6)) * (-1 if self.dice.random() < 0.2 else 1)
        state["offset"] = min(max(state["offset"] + step, 0), state["height"] - state["viewport"])
        self._record_on_item(
            state, "page_scroll", offset_px=state["offset"], height_px=state["height"], viewport_px=state["viewport"]
        )
        self._expose(state)

    def _expose(self, state):
        """The other items are in the lower two thirds of the page, evenly distributed."""
        share = (state["offset"] + state["viewport"]) / state["height"]
        reached = min(int((share - 1 / 3) * 1.5 * SLOTS), SLOTS)
        for slot in range(state["exposed"], max(reached, state["exposed"])):
            self.now += self.dice.randrange(20, 200)
            self._record_on_item(
                state,
                "exposure",
                area=_area(slot),
                slot=slot,
                shown=state["shown"][slot]["id"],
                visible_ms=self._visible(),
            )
        state["exposed"] = max(reached, state["exposed"])

    def _clicked(self, state):
        target = self.dice.choices(("gallery", "reviews", "variant", "item", "shop", "share"), (40, 22, 16, 12, 6, 4))
        if target != ["item"]:
            self._record_on_item(
                state, "click", target=target[0], x_px=self.dice.randrange(1080), y_px=self.dice.randrange(2000)
            )
        else:
            self._clicked_item(state)  # as if opened in the background: it has no further effect

    def _clicked_item(self, state):
        """A click on one of the exposed items; returns that item, or None if there was none."""
        if not state["exposed"]:
            return None
        slot = self.dice.randrange(state["exposed"])
        shown = state["shown"][slot]
        self._record_on_item(state, "click", target="item", area=_area(slot), slot=slot, shown=shown["id"])
        return shown

    def _looked_elsewhere(self, state):
        """Another item's page is opened over this one and closed again: a visit nested in this one."""
        since, shown = self.now, self._clicked_item(state)
        if shown:
            self.now += 300
            self._item_page(shown, "item", nested=True)
        return self.now - since

    def _favoured(self, state):
        self._record_on_item(state, "click", target="favourite")
        self._record_on_item(state, "favourite", on=True)
        if self.dice.random() < 0.1:
            self.now += self.dice.randrange(500, 4000)
            self._record_on_item(state, "favourite", on=False)

    def _carted(self, state):
        pieces, variant = self.dice.choice((1, 1, 1, 2, 3)), self.dice.choice("SML")
        self._record_on_item(state, "click", target="cart")
        self._record_on_item(state, "cart", variant=variant, **_sold(state["item"], pieces))
        self.cart.append((state["item"], pieces))

    def _bought(self, state):
        self._record_on_item(state, "click", target="buy")
        self._record_on_item(state, "order", variant=self.dice.choice("SML"), **_sold(state["item"], 1))

    # ---- events

    def _leave(self, page, visit):
        if self.dice.random() >= self.options.missing_exits:
            self._record("page_exit", page, visit)
        self.now += 200

    def _record_on_item(self, state, name, **contents):
        self._record(name, "item", state["visit"], item=_public(state["item"]), **contents)

    def _record(self, name, page, visit, **contents):
        number = len(self.done)
        trace = {
            "session": self.name,
            "sequence": number,
            "trace_id": f"{self.dice.getrandbits(128):032x}",
            "span_id": f"{self.dice.getrandbits(64):016x}",
            "position": f"a2141.{self.dice.randrange(1_000_000, 9_999_999)}.{page}.{number}",
        }
        self.done.append(
            (
                self.now,
                {
                    "name": name,
                    "time_ms": self.now,
                    "page": page,
                    "visit": visit,
                    "contents": {**contents, "trace": trace, **self.context},
                    "id": f"{self.name}/{number}",
                    "key": self.key,
                },
            )
        )

    def _visit(self):
        self.visits += 1
        return f"{self.name}.{self.visits}"

    def _visible(self):
        return int(self.dice.lognormvariate(math.log(1800), 0.7))

    def _picked(self):
        """An item that the shopper likes, or a popular one."""
        weights = self.liked if self.dice.random() < 0.8 and self.liked[-1] > 0 else self.market.sales
        return self.dice.choices(self.market.items, cum_weights=weights)[0]

    def _context(self):
        """The app, device and network in each event of a session."""
        dice = self.dice
        return {
            "app": {"name": "shop", "version": f"10.{dice.randrange(30)}.{dice.randrange(9)}", "build": 20_400_117},
            "device": {
                "model": f"phone-{dice.randrange(200):03}",
                "system": dice.choice(("android 15", "android 16", "ios 19.1")),
                "screen_px": dice.choice(([1080, 2340], [1170, 2532], [720, 1600])),
                "memory_mb": dice.choice((4096, 6144, 8192)),
                "language": dice.choice(("en-GB", "de-DE", "fr-FR", "es-ES")),
                "time_zone": "Europe/Berlin",
                "battery": round(dice.random(), 2),
                "orientation": "portrait",
            },
            "agent": f"shop/10 (build {dice.randrange(10**9):09})",
            "referrer": f"https://shop.example/start?campaign=autumn-{dice.randrange(90):02}&medium=app",
            "network": {"kind": dice.choice(("wifi", "5g", "4g")), "round_trip_ms": dice.randrange(8, 180)},
            "experiments": [
                f"experiment-{number:03}:{dice.choice(('control', 'variant-a', 'variant-b'))}"
                for number in dice.sample(range(300), 8)
            ],
        }


def _process(dice, length, mean, most):
    """Times of a Poisson process within `length`, at most the first `most`."""
    times, time = [], dice.expovariate(1 / mean)
    while time < length and len(times) < most:
        times.append(time)
        time += dice.expovariate(1 / mean)
    return times


def _area(slot):
    return ("recommended", "bought_together", "same_shop")[slot % 3]


def _public(item):
    return {name: value for name, value in item.items() if name != "sales"}


def _sold(item, pieces):
    return {"pieces": pieces, "amount_cents": pieces * item["price_cents"]}


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m tasks.ipv.sessions", description="Events of a shop, as JSON lines."
    )
    for field in dataclasses.fields(Options):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}", type=field.type, default=field.default, help=f"[{field.default}]"
        )
    for event in events(Options(**vars(parser.parse_args(arguments)))):
        print(json.dumps(event, separators=(",", ":")))


if __name__ == "__main__":
    main(sys.argv[1:])
