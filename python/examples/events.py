"""An event store: streams of events, appended under a condition, and subscribers that continue where they stopped.

    python events.py orders.kaml append order-7 created paid
    python events.py orders.kaml append order-7 shipped --after 2     # only if nobody else has appended meanwhile
    python events.py orders.kaml read order-7
    python events.py orders.kaml follow mailer                        # what `mailer` has not seen yet

An event is stored once, under its place in the order of all events. A second namespace finds the events of a stream. Both, and the number of events of the stream,
change in one transaction. So a subscriber sees the events of all streams in the order in which they were committed, and none twice.
"""

import argparse
import json
import sys
from typing import Any, Iterator, List, NamedTuple, Optional

import kaml


class Event(NamedTuple):
    """An event as it is read."""

    #: Its place among all events, from 1.
    position: int
    stream: str
    #: Its place in the stream, from 1.
    number: int
    data: Any


class Conflict(Exception):
    """The stream has other events than the writer knows of."""


class EventStore:
    """Events on a device. Any number of threads may call it."""

    def __init__(self, device: kaml.Device, store: kaml.Store) -> None:
        self._store = store
        self._events = device.ensure_namespace("events", kaml.KeyKind.ORDERED)
        self._streams = device.ensure_namespace("streams", kaml.KeyKind.ORDERED)
        self._counts = device.ensure_namespace("counts", kaml.KeyKind.ANY)
        self._seen = device.ensure_namespace("seen", kaml.KeyKind.ANY)

    def append(self, stream: str, *data: Any, after: Optional[int] = None) -> int:
        """Appends events, all or none. With ``after``, only if the stream has exactly so many events. Returns how many it has then."""

        def add(txn: kaml.Transaction) -> int:
            count = int(txn.read_for_update(self._counts, _name(stream)) or 0)
            if after is not None and count != after:
                raise Conflict(f"{stream} has {count} events, not {after}")
            position = int(txn.read_for_update(self._counts, "all") or 0)
            for each in data:
                count, position = count + 1, position + 1
                event = {"stream": stream, "number": count, "data": each}
                txn.insert(self._events, position, json.dumps(event).encode())
                txn.insert(self._streams, _place(stream, count), position.to_bytes(8, "big"))
            txn.upsert(self._counts, _name(stream), b"%d" % count)
            txn.upsert(self._counts, "all", b"%d" % position)
            return count

        return self._store.run(add)

    def read(self, stream: str, after: int = 0) -> List[Event]:
        """The events of a stream, oldest first, as of one moment."""
        with self._store.read_only() as snapshot:
            places = snapshot.range(self._streams, _place(stream, after + 1), _place(stream, 1 << 63))
            found = [int.from_bytes(position, "big") for _, position in places]
            return [_event(position, snapshot.get(self._events, position)) for position in found]

    def follow(self, subscriber: str, limit: int = 100) -> Iterator[Event]:
        """Events of all streams that the subscriber has not seen. An event counts as seen when the next one is requested: one that was in progress
        when the program ended comes again."""
        while True:
            seen = int(self._store.get(self._seen, subscriber) or 0)
            with self._store.read_only() as snapshot:
                found = [_event(int.from_bytes(key, "big"), value) for key, value in snapshot.range(self._events, seen + 1, seen + 1 + limit)]
            if not found:
                return
            for event in found:
                yield event
                self._store.put(self._seen, subscriber, b"%d" % event.position)


def _name(stream: str) -> bytes:
    return b"stream " + stream.encode()


def _place(stream: str, number: int) -> bytes:
    return stream.encode() + b"\0" + number.to_bytes(8, "big")


def _event(position: int, value: "Optional[bytes]") -> Event:
    event = json.loads(value or b"{}")
    return Event(position, event["stream"], event["number"], event["data"])


def main() -> None:
    parser = argparse.ArgumentParser(description="An event store with subscriptions.")
    parser.add_argument("device")
    parser.add_argument("action", choices=("append", "read", "follow"))
    parser.add_argument("name", help="a stream, or a subscriber")
    parser.add_argument("events", nargs="*")
    parser.add_argument("--after", type=int)
    arguments = parser.parse_args()
    with kaml.Device.open_or_create(arguments.device) as device, kaml.Store(device, 8 << 20) as store:
        events = EventStore(device, store)
        if arguments.action == "append":
            try:
                print(events.append(arguments.name, *arguments.events, after=arguments.after), "events")
            except Conflict as conflict:
                sys.exit(str(conflict))
            return
        found = events.read(arguments.name) if arguments.action == "read" else events.follow(arguments.name)
        for event in found:
            print(f"{event.position} {event.stream} {event.number}: {event.data}")


if __name__ == "__main__":
    main()
