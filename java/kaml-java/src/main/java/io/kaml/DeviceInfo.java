package io.kaml;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * What a device is.
 *
 * @param flashBytes bytes of all pages
 * @param blockBytes data bytes of an erase block
 * @param ringBytes bytes of the commit ring
 * @param blockCount erase blocks
 * @param channelCount channels
 * @param dieCount dies, which is the number of logs
 * @param pageBytes bytes of a page
 * @param chunkBytes bytes of a chunk; records take whole chunks
 * @param sectorBytes bytes of the smallest durable write
 * @param durability what acknowledged changes survive, as it was opened
 * @param wasClean whether the last close was clean
 * @param replayedJournalEntries journal entries that were replayed when it was opened
 * @param replayedRingRecords ring records that were replayed when it was opened
 * @param uuid its identity: 32 hexadecimal digits
 * @param description the medium in words, with its path
 */
public record DeviceInfo(long flashBytes, long blockBytes, long ringBytes, int blockCount, int channelCount, int dieCount, int pageBytes,
        int chunkBytes, int sectorBytes, OpenOptions.Durability durability, boolean wasClean, long replayedJournalEntries,
        long replayedRingRecords, String uuid, String description) {
    /** Bytes of {@code kaml_device_info}: its numbers, 33 bytes of identity, 1024 of description, and padding. */
    private static final long BYTES = 1144;

    static DeviceInfo of(long device) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment info = arena.allocate(BYTES, 8);
            info.set(JAVA_LONG, 0, BYTES);
            Native.check(Native.status(Native.INFO, device, info));
            return new DeviceInfo(info.get(JAVA_LONG, 8), info.get(JAVA_LONG, 16), info.get(JAVA_LONG, 24), info.get(JAVA_INT, 32),
                    info.get(JAVA_INT, 36), info.get(JAVA_INT, 40), info.get(JAVA_INT, 44), info.get(JAVA_INT, 48), info.get(JAVA_INT, 52),
                    OpenOptions.Durability.values()[info.get(JAVA_INT, 56)], info.get(JAVA_INT, 60) != 0, info.get(JAVA_LONG, 64),
                    info.get(JAVA_LONG, 72), info.getString(80), info.getString(113));
        }
    }
}
