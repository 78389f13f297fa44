package io.kaml;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** Stores and transactions. */
class StoreTest {
    private static final StoreOptions QUICK = new StoreOptions(false, true, 0, 0);

    /**
     * Goal: transactions over the same records are serializable, in whatever order they wait for each other.
     * Method: threads move amounts between accounts in both directions; the sum stays the same, in every range that is read meanwhile too.
     */
    @Test
    void sumsStay() throws InterruptedException {
        try (Device device = Device.inMemory(64L << 20)) {
            Namespace accounts = device.createNamespace("accounts", NamespaceOptions.ordered());
            try (Store store = new Store(device, 8 << 20, QUICK)) {
                for (long account = 0; account < 20; account++) {
                    store.put(accounts, Keys.u64(account), Keys.u64(100));
                }
                List<Throwable> failures = java.util.Collections.synchronizedList(new ArrayList<>());
                List<Thread> threads = new ArrayList<>();
                for (int t = 0; t < 4; t++) {
                    Random random = new Random(t);
                    threads.add(Thread.ofPlatform().start(() -> {
                        try {
                            for (int i = 0; i < 300; i++) {
                                byte[] from = Keys.u64(random.nextLong(20));
                                byte[] to = Keys.u64(random.nextLong(20));
                                store.run(transaction -> {
                                    long taken = Keys.u64(transaction.read(accounts, from));
                                    transaction.update(accounts, from, Keys.u64(taken - 1));
                                    long given = Keys.u64(transaction.read(accounts, to));
                                    return transaction.update(accounts, to, Keys.u64(given + 1));
                                });
                            }
                        } catch (Throwable failure) {
                            failures.add(failure);
                        }
                    }));
                }
                for (int i = 0; i < 20; i++) {
                    List<Entry> all = store.run(transaction -> transaction.range(accounts, KeyRange.all(), 100));
                    assertEquals(20 * 100, all.stream().mapToLong(entry -> Keys.u64(entry.value())).sum());
                }
                for (Thread thread : threads) {
                    thread.join();
                }
                assertEquals(List.of(), failures);
                try (Snapshot snapshot = store.readOnly()) {
                    long sum = 0;
                    for (long account = 0; account < 20; account++) {
                        sum += Keys.u64(snapshot.get(accounts, Keys.u64(account)));
                    }
                    assertEquals(20 * 100, sum);
                }
            }
        }
    }

    /**
     * Goal: a transaction does what its calls say, and leaves nothing when it is not committed.
     * Method: each call, with and without the record; a body that throws; a store that is closed while one is open.
     */
    @Test
    void transactionsEndWhole() {
        try (Device device = Device.inMemory(64L << 20)) {
            Namespace notes = device.createNamespace("notes", NamespaceOptions.ordered());
            byte[] key = Keys.text("k");
            try (Store store = new Store(device, 8 << 20, StoreOptions.DEFAULT)) {
                AtomicInteger runs = new AtomicInteger();
                boolean done = store.run(transaction -> {
                    runs.incrementAndGet();
                    assertNull(transaction.readForUpdate(notes, key));
                    assertFalse(transaction.update(notes, key, key));
                    assertFalse(transaction.delete(notes, key));
                    assertTrue(transaction.insert(notes, key, Keys.text("one")));
                    assertFalse(transaction.insert(notes, key, key));
                    transaction.upsert(notes, Keys.text("l"), Keys.text("two"));
                    assertEquals(2, transaction.range(notes, KeyRange.all(), 10).size());
                    assertEquals(2, transaction.rangeForUpdate(notes, KeyRange.all(), 10).size());
                    return transaction.delete(notes, Keys.text("l"));
                });
                assertTrue(done);
                assertEquals(1, runs.get());
                assertArrayEquals(Keys.text("one"), store.get(notes, key));
                assertThrows(IllegalStateException.class, () -> store.run(transaction -> {
                    transaction.upsert(notes, key, Keys.text("never"));
                    throw new IllegalStateException("the body's own");
                }));
                assertArrayEquals(Keys.text("one"), store.get(notes, key));
                assertEquals(Status.IN_USE,
                        assertThrows(KamlException.class, () -> notes.put(key, key)).status());
                assertEquals(Status.IN_USE, assertThrows(KamlException.class, device::close).status());
                Transaction open = store.begin();
                open.upsert(notes, key, Keys.text("never"));
                assertEquals(Status.IN_USE, assertThrows(KamlException.class, store::close).status());
                open.close();
                open.close();
                assertEquals(Status.BAD_HANDLE, assertThrows(KamlException.class, open::commit).status());
                assertEquals(1, store.range(notes, KeyRange.all(), 10).size());
                store.delete(notes, key);
                assertFalse(store.exists(notes, key));
                store.flush();
            }
            assertNull(notes.get(key));
        }
    }
}
