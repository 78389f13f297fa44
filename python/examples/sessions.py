"""A session store: data of users that are logged in, which ends after a while of silence.

    python sessions.py sessions.kaml begin ada          # prints a token
    python sessions.py sessions.kaml show TOKEN         # also prolongs it
    python sessions.py sessions.kaml end TOKEN
    python sessions.py sessions.kaml sweep              # removes what has ended

A second namespace has the sessions in the order in which they end, so a sweep reads only those. A session that has ended is not shown, swept or not.
"""

import argparse
import json
import secrets
import struct
import time
from typing import Any, Callable, Dict, Optional

import kaml

SILENCE_S = 1800.0


class Sessions:
    """Sessions on a device. Any number of threads may call it."""

    def __init__(self, device: kaml.Device, store: kaml.Store, silence_s: float = SILENCE_S, clock: Callable[[], float] = time.time) -> None:
        self._store, self._silence_s, self._clock = store, silence_s, clock
        self._sessions = device.ensure_namespace("sessions", kaml.KeyKind.ANY)
        self._ends = device.ensure_namespace("ends", kaml.KeyKind.ORDERED)

    def begin(self, **data: Any) -> str:
        """Begins a session with some data. Returns its token, which nobody can guess."""
        token = secrets.token_hex(24)
        self._store.run(lambda txn: self._keep(txn, token, None, data))
        return token

    def use(self, token: str, **changes: Any) -> Optional[Dict[str, Any]]:
        """The data of a session, changed as requested, and its time begins again. None if it has ended."""

        def prolong(txn: kaml.Transaction) -> Optional[Dict[str, Any]]:
            found = txn.read_for_update(self._sessions, token)
            if found is None:
                return None
            end, data = json.loads(found)
            if end <= self._clock():
                return None
            data.update(changes)
            self._keep(txn, token, end, data)
            return data

        return self._store.run(prolong)

    def end(self, token: str) -> None:
        """Ends a session; nothing if it has ended."""

        def remove(txn: kaml.Transaction) -> None:
            found = txn.read_for_update(self._sessions, token)
            if found is not None:
                txn.delete(self._ends, _place(json.loads(found)[0], token))
                txn.delete(self._sessions, token)

        self._store.run(remove)

    def sweep(self, limit: int = 1000) -> int:
        """Removes sessions that have ended, at most so many. Returns how many."""

        def remove(txn: kaml.Transaction) -> int:
            ended = txn.range(self._ends, stop=_place(self._clock(), ""), limit=limit)
            for place, _ in ended:
                txn.delete(self._ends, place)
                txn.delete(self._sessions, place[8:])
            return len(ended)

        return self._store.run(remove)

    def _keep(self, txn: kaml.Transaction, token: str, end: Optional[float], data: Dict[str, Any]) -> None:
        if end is not None:
            txn.delete(self._ends, _place(end, token))
        new_end = self._clock() + self._silence_s
        txn.upsert(self._sessions, token, json.dumps([new_end, data]).encode())
        txn.upsert(self._ends, _place(new_end, token), b"")


def _place(seconds: float, token: str) -> bytes:
    return struct.pack(">Q", int(seconds * 1e6)) + token.encode()


def main() -> None:
    parser = argparse.ArgumentParser(description="A session store.")
    parser.add_argument("device")
    parser.add_argument("action", choices=("begin", "show", "end", "sweep"))
    parser.add_argument("word", nargs="?", default="", help="a user, or a token")
    arguments = parser.parse_args()
    with kaml.Device.open_or_create(arguments.device) as device, kaml.Store(device, 8 << 20) as store:
        sessions = Sessions(device, store)
        if arguments.action == "begin":
            print(sessions.begin(user=arguments.word))
        elif arguments.action == "show":
            print(sessions.use(arguments.word) or "that session has ended")
        elif arguments.action == "end":
            sessions.end(arguments.word)
        else:
            print(sessions.sweep(), "removed")


if __name__ == "__main__":
    main()
