package io.kaml;

import java.time.Duration;

/**
 * Which old versions a versioned namespace keeps when space runs low: what any of the rules keeps, and what snapshots see.
 *
 * @param keepLast number of the newest versions of each key, at least 1
 * @param keepFor everything that was put within this time; {@link Duration#ZERO} for no such rule
 * @param keepInternal whether the newest version of each key is kept among those that were put around the same time
 */
public record MergePolicy(int keepLast, Duration keepFor, boolean keepInternal) {
    /** Keeps the newest version of each key, and what snapshots see. */
    public static final MergePolicy NEWEST = new MergePolicy(1, Duration.ZERO, false);
}
