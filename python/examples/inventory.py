"""A small inventory: stock in places, orders that take from it, and invariants that are checked while others work.

    python inventory.py stock.kaml receive tea 100
    python inventory.py stock.kaml order 7 tea=3 cup=1      # all or nothing
    python inventory.py stock.kaml cancel 7
    python inventory.py stock.kaml check

There is no SQL: a table is a namespace, a row is JSON, and an index is a second namespace that changes in the same transaction. Two orders for the last piece
wait for each other, so it is sold once.
"""

import argparse
import json
import sys
from typing import Any, Dict, List

import kaml


class Short(Exception):
    """There is less in stock than was ordered."""


class Inventory:
    """An inventory on a device. Any number of threads may call it."""

    def __init__(self, device: kaml.Device, store: kaml.Store) -> None:
        self._store = store
        self._items = device.ensure_namespace("items", kaml.KeyKind.ORDERED)
        self._orders = device.ensure_namespace("orders", kaml.KeyKind.U64)
        #: item, zero byte, number of an order that has some of it
        self._orders_of = device.ensure_namespace("orders of", kaml.KeyKind.ORDERED)

    def receive(self, item: str, count: int) -> int:
        """Adds to the stock of an item. Returns how many there are."""

        def add(txn: kaml.Transaction) -> int:
            row = self._item(txn, item)
            row["stock"], row["received"] = row["stock"] + count, row["received"] + count
            txn.upsert(self._items, item, json.dumps(row).encode())
            return row["stock"]

        return self._store.run(add)

    def order(self, number: int, lines: Dict[str, int]) -> None:
        """Takes items out of the stock for an order; none of them if one is short."""

        def take(txn: kaml.Transaction) -> None:
            txn.insert(self._orders, number, json.dumps(lines).encode())
            for item, count in sorted(lines.items()):  # in one order for all, so orders rarely deadlock
                row = self._item(txn, item)
                if row["stock"] < count:
                    raise Short(f"{row['stock']} of {item} are left, {count} were ordered")
                row["stock"] -= count
                txn.upsert(self._items, item, json.dumps(row).encode())
                txn.insert(self._orders_of, _pair(item, number), b"%d" % count)

        self._store.run(take)

    def cancel(self, number: int) -> bool:
        """Returns the items of an order to the stock. False if there is no such order."""

        def put_back(txn: kaml.Transaction) -> bool:
            found = txn.read_for_update(self._orders, number)
            if found is None:
                return False
            for item, count in sorted(json.loads(found).items()):
                row = self._item(txn, item)
                row["stock"] += count
                txn.upsert(self._items, item, json.dumps(row).encode())
                txn.delete(self._orders_of, _pair(item, number))
            txn.delete(self._orders, number)
            return True

        return self._store.run(put_back)

    def stock(self) -> Dict[str, int]:
        """How many there are of each item, as of one moment."""
        with self._store.read_only() as snapshot:
            return {key.decode(): json.loads(row)["stock"] for key, row in snapshot.range(self._items)}

    def check(self) -> List[str]:
        """What is wrong, as of one moment: all that was received is in stock or in an order, and the index has what the orders have."""
        wrong = []
        with self._store.read_only() as snapshot:
            for key, row in snapshot.range(self._items):
                item, row = key.decode(), json.loads(row)
                ordered = 0
                for pair, count in snapshot.prefix(self._orders_of, key + b"\0"):
                    ordered += int(count)
                    order = snapshot.get(self._orders, int.from_bytes(pair[-8:], "big"))
                    if order is None or json.loads(order).get(item) != int(count):
                        wrong.append(f"the index has an order of {item} that does not exist")
                if row["stock"] < 0 or row["stock"] + ordered != row["received"]:
                    wrong.append(f"{row['received']} of {item} were received, {row['stock']} are in stock, {ordered} ordered")
        return wrong

    def _item(self, txn: kaml.Transaction, item: str) -> Any:
        return json.loads(txn.read_for_update(self._items, item) or b'{"stock": 0, "received": 0}')


def _pair(item: str, number: int) -> bytes:
    return item.encode() + b"\0" + number.to_bytes(8, "big")


def main() -> None:
    parser = argparse.ArgumentParser(description="A small inventory.")
    parser.add_argument("device")
    parser.add_argument("action", choices=("receive", "order", "cancel", "show", "check"))
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args()
    with kaml.Device.open_or_create(arguments.device) as device, kaml.Store(device, 8 << 20) as store:
        inventory, words = Inventory(device, store), arguments.words
        try:
            if arguments.action == "receive":
                print(inventory.receive(words[0], int(words[1])), "in stock")
            elif arguments.action == "order":
                lines = {item: int(count) for item, count in (word.split("=") for word in words[1:])}
                inventory.order(int(words[0]), lines)
            elif arguments.action == "cancel":
                print("cancelled" if inventory.cancel(int(words[0])) else "there is no such order")
            elif arguments.action == "show":
                print("\n".join(f"{item}: {count}" for item, count in inventory.stock().items()))
            else:
                print("\n".join(inventory.check()) or "all is well")
        except Short as short:
            sys.exit(str(short))
        except kaml.Error as error:
            sys.exit("there is an order of that number" if error.status == kaml.Status.EXISTS else str(error))


if __name__ == "__main__":
    main()
