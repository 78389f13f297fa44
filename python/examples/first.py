import kaml

with kaml.Device.open_or_create("first.kaml") as device:
    users = device.records(device.ensure_namespace("users", kaml.KeyKind.ORDERED))
    users["ada"] = b"Ada Lovelace"  # durable when the assignment returns
    users["alan"] = b"Alan Turing"
    print(users["ada"].decode(), len(users), list(users.prefix("al")))

    counts = device.ensure_namespace("counts")
    with kaml.Store(device, 8 << 20) as store:  # a cache of 8 MiB, with transactions

        def visit(txn):
            seen = int(txn.read_for_update(counts, "visits") or 0) + 1
            txn.upsert(counts, "visits", str(seen).encode())
            return seen

        print("visit", store.run(visit))
