package io.kaml.infinispan;

import io.kaml.CreateOptions;
import io.kaml.Device;
import io.kaml.OpenOptions;
import io.kaml.infinispan.configuration.KamlStoreConfiguration.Durability;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.infinispan.persistence.spi.PersistenceException;

/** A device that the caches of this process share: the first one opens it, the last one closes it. */
final class SharedDevice {
    /** The first size of a file that grows: it takes values and batches of 8 MiB. A sparse file takes what is written to it. */
    private static final long FIRST_BYTES = 1 << 30;
    private static final Map<Path, SharedDevice> OPEN = new HashMap<>();

    final Device device;
    final WriteQueue writes;
    final ReadQueue reads;
    private final Path path;
    private final Durability durability;
    private final Set<String> caches = new HashSet<>();

    private SharedDevice(Path path, Durability durability, long capacityBytes) throws IOException {
        OpenOptions.Durability how = OpenOptions.Durability.valueOf(durability.name());
        if (!Files.exists(path) || Files.isRegularFile(path) && Files.size(path) == 0) {
            boolean grows = capacityBytes == 0;
            CreateOptions options = durability == Durability.PROCESS ? CreateOptions.DEFAULT.withProcessDurability() : CreateOptions.DEFAULT;
            Device.create(path, grows ? FIRST_BYTES : capacityBytes, grows ? options.withGrowth() : options).close();
        }
        this.path = path;
        this.durability = durability;
        this.device = Device.open(path, OpenOptions.DEFAULT.withDurability(how).throughPageCache());
        this.writes = new WriteQueue(device, path.getFileName().toString());
        this.reads = new ReadQueue(path.getFileName().toString());
    }

    /**
     * Opens a device for a cache, or joins the caches that have it open.
     *
     * @throws PersistenceException if a cache of that name has it open already, or caches with another durability
     */
    static SharedDevice open(Path given, Durability durability, long capacityBytes, String cache) throws IOException {
        Path directory = given.toAbsolutePath().getParent();
        Files.createDirectories(directory);
        Path path = Files.exists(given) ? given.toRealPath() : directory.toRealPath().resolve(given.getFileName());
        synchronized (OPEN) {
            SharedDevice shared = OPEN.get(path);
            if (shared == null) {
                shared = new SharedDevice(path, durability, capacityBytes);
                OPEN.put(path, shared);
            } else if (shared.durability != durability) {
                throw new PersistenceException("device " + path + " is open with durability " + shared.durability + ", cache \"" + cache
                        + "\" requests " + durability + ": configure one durability for all caches of a device, or another path");
            }
            if (!shared.caches.add(cache)) {
                throw new PersistenceException("cache \"" + cache + "\" of device " + path
                        + " is already running in this process: give each cache manager a path of its own");
            }
            return shared;
        }
    }

    /** Ends the use by a cache. */
    void release(String cache) throws InterruptedException {
        synchronized (OPEN) {
            if (caches.remove(cache) && caches.isEmpty()) {
                OPEN.remove(path);
                writes.close();
                reads.close();
                device.close();
            }
        }
    }

    Path path() {
        return path;
    }
}
