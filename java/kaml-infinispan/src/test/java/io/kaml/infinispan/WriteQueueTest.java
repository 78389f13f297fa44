package io.kaml.infinispan;

import static org.testng.AssertJUnit.assertArrayEquals;
import static org.testng.AssertJUnit.assertEquals;
import static org.testng.AssertJUnit.assertFalse;
import static org.testng.AssertJUnit.assertNull;
import static org.testng.AssertJUnit.assertTrue;

import io.kaml.Device;
import io.kaml.Namespace;
import io.kaml.NamespaceOptions;
import io.kaml.infinispan.WriteQueue.Change;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import org.infinispan.commons.util.IntSets;
import org.testng.annotations.Test;

/** The order of changes, what deletes report, and entries that other nodes send. */
@Test(groups = "unit", testName = "io.kaml.infinispan.WriteQueueTest")
public class WriteQueueTest {
    private static byte[] key(int number) {
        return Layout.recordKey(number % 4, new byte[] {(byte) number}, 0, 1);
    }

    private static <T> T join(CompletionStage<T> stage) {
        return ((CompletableFuture<T>) stage).join();
    }

    /**
     * Goal: an entry that another node sends never replaces a change of this node, whether that was made before, or is part of the same Put.
     * Method: keys that were stored, deleted and untouched since their segment was added; the same without waiting in between; the segment is
     * removed and added.
     */
    public void receivedEntriesAreOld() throws Exception {
        for (boolean together : new boolean[] {false, true}) {
            try (Device device = Device.inMemory(64 << 20)) {
                Namespace records = device.createNamespace("records", NamespaceOptions.ordered());
                WriteQueue writes = new WriteQueue(device, "test");
                Received received = new Received(Long.MAX_VALUE / 4);
                join(writes.run(() -> {
                    received.begin(IntSets.immutableRangeSet(4));
                    return null;
                }, Runnable::run));
                byte[] here = {1};
                byte[] sent = {2};
                List<CompletionStage<?>> stages = new ArrayList<>();
                stages.add(writes.write(List.of(new Change(records, key(0), here)), received, Runnable::run));
                stages.add(writes.delete(new Change(records, key(1), null), received, Runnable::run));
                stages.add(writes.write(List.of(new Change(records, key(2), here), new Change(records, key(3), null)), received, Runnable::run));
                if (!together) {
                    stages.forEach(WriteQueueTest::join);
                }
                for (int i = 0; i < 5; i++) {
                    stages.add(writes.receive(List.of(new Change(records, key(i), sent)), received, Runnable::run));
                }
                stages.forEach(WriteQueueTest::join);
                assertArrayEquals(here, records.get(key(0)));
                assertNull(records.get(key(1)));
                assertArrayEquals(here, records.get(key(2)));
                assertNull(records.get(key(3)));
                assertArrayEquals(sent, records.get(key(4)));
                join(writes.run(() -> {
                    received.end(IntSets.immutableSet(1));
                    received.begin(IntSets.immutableSet(1));
                    return null;
                }, Runnable::run));
                join(writes.receive(List.of(new Change(records, key(1), sent)), received, Runnable::run));
                assertArrayEquals(sent, records.get(key(1)));
                writes.close();
            }
        }
    }

    /**
     * Goal: a delete reports whether its record existed at its place in the order, however many changes share a Put.
     * Method: random puts and deletes of few keys without waiting, compared with a map.
     */
    public void deletesReportWhatExisted() throws Exception {
        try (Device device = Device.inMemory(64 << 20)) {
            Namespace records = device.createNamespace("records", NamespaceOptions.ordered());
            WriteQueue writes = new WriteQueue(device, "test");
            Received received = new Received(0);
            Random random = new Random(1);
            Map<Integer, byte[]> expected = new HashMap<>();
            List<CompletionStage<Boolean>> deletes = new ArrayList<>();
            List<Boolean> existed = new ArrayList<>();
            CompletionStage<Void> last = null;
            for (int i = 0; i < 5000; i++) {
                int number = random.nextInt(20);
                if (random.nextBoolean()) {
                    byte[] value = {(byte) i};
                    last = writes.write(List.of(new Change(records, key(number), value)), received, Runnable::run);
                    expected.put(number, value);
                } else {
                    deletes.add(writes.delete(new Change(records, key(number), null), received, Runnable::run));
                    existed.add(expected.remove(number) != null);
                }
            }
            join(last);
            assertEquals(existed, deletes.stream().map(WriteQueueTest::join).toList());
            for (int number = 0; number < 20; number++) {
                assertArrayEquals(expected.get(number), records.get(key(number)));
            }
            writes.close();
            assertTrue(((CompletableFuture<?>) writes.delete(new Change(records, key(1), null), received, Runnable::run)).isCompletedExceptionally());
            assertFalse(records.exists(key(21)));
        }
    }
}
