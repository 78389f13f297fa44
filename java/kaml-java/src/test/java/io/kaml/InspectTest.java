package io.kaml;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Statistics, checks, and the options of opening. */
class InspectTest {
    @TempDir
    Path directory;

    /**
     * Goal: statistics count what was done, whatever durability and cache a device was opened with.
     * Method: known numbers of puts, gets and deletes; each combination of options.
     */
    @Test
    void statisticsCount() {
        Path path = directory.resolve("data.kaml");
        Device.create(path, 64 << 20, CreateOptions.DEFAULT).close();
        for (OpenOptions.Durability durability : OpenOptions.Durability.values()) {
            OpenOptions options = OpenOptions.DEFAULT.withDurability(durability);
            for (OpenOptions each : List.of(options, options.throughPageCache())) {
                try (Device device = Device.open(path, each)) {
                    Namespace records = device.ensureNamespace("records", NamespaceOptions.ordered());
                    for (long i = 0; i < 5; i++) {
                        records.put(Keys.u64(i), new byte[100]);
                    }
                    assertArrayEquals(new byte[100], records.get(Keys.u64(4)));
                    records.delete(Keys.u64(0));
                    Statistics statistics = device.statistics();
                    assertEquals(5, statistics.putCount());
                    assertEquals(500, statistics.hostBytes());
                    assertEquals(1, statistics.deleteCount());
                    assertEquals(1, statistics.getCount());
                    assertTrue(statistics.capacityBytes() > 16 << 20 && statistics.capacityBytes() < 64 << 20, statistics.toString());
                    assertTrue(statistics.openNanos() > 0 && statistics.liveBytes() > 0 && statistics.freeBytes() > 0);
                    assertFalse(statistics.isStopped());
                }
            }
        }
    }

    /**
     * Goal: many values at once are those of single gets, whether they exist, are empty or large.
     * Method: every third key is missing; one key is bad, one too many.
     */
    @Test
    void manyAreRead() {
        try (Device device = Device.inMemory(64 << 20)) {
            Namespace records = device.createNamespace("records", NamespaceOptions.ordered());
            List<byte[]> keys = new ArrayList<>();
            for (int i = 0; i < 90; i++) {
                keys.add(Keys.text("key" + "-".repeat(i) + i));
                if (i % 3 != 0) {
                    records.put(keys.get(i), new byte[i % 3 == 1 ? 0 : i * 500]);
                }
            }
            List<byte[]> values = records.getMany(keys);
            for (int i = 0; i < 90; i++) {
                assertArrayEquals(records.get(keys.get(i)), values.get(i));
            }
            assertEquals(List.of(), records.getMany(List.of()));
            assertThrows(KamlException.class, () -> records.getMany(List.of(new byte[0])));
            assertThrows(KamlException.class, () -> records.getMany(java.util.Collections.nCopies(4097, keys.get(1))));
        }
    }

    /**
     * Goal: a check finds whole records, and reports a damaged one in words.
     * Method: check a device; change one byte of a large value in its file; check again.
     */
    @Test
    void checksFindDamage() throws IOException {
        Path path = directory.resolve("data.kaml");
        byte[] value = new byte[100_000];
        Arrays.fill(value, (byte) 0x5a);
        try (Device device = Device.openOrCreate(path, 64 << 20)) {
            Namespace records = device.createNamespace("records", NamespaceOptions.ordered());
            records.put(Keys.text("large"), value);
            records.put(Keys.text("small"), new byte[10]);
            List<String> problems = new ArrayList<>();
            CheckReport report = device.check(problems::add);
            assertEquals(List.of(), problems);
            assertEquals(2, report.records());
            assertEquals(100_010, report.valueBytes());
            assertEquals(0, report.problemCount());
        }
        byte[] file = Files.readAllBytes(path);
        int run = 0;
        int at = 0;
        while (run < 50_000) {
            run = file[at++] == 0x5a ? run + 1 : 0;
        }
        try (FileChannel channel = FileChannel.open(path, StandardOpenOption.WRITE)) {
            channel.write(ByteBuffer.wrap(new byte[1]), at - 1);
        }
        try (Device device = Device.open(path)) {
            List<String> problems = new ArrayList<>();
            CheckReport report = device.check(problems::add);
            assertEquals(problems.size(), report.problemCount());
            assertFalse(problems.isEmpty());
            assertFalse(problems.getFirst().isEmpty());
        }
    }
}
