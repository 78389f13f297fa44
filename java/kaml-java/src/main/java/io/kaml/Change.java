package io.kaml;

import java.time.Instant;

/**
 * A change that was committed.
 *
 * @param kind what it is
 * @param namespace the number of its namespace, which {@link Namespace#id} returns
 * @param key the key; null if there is none
 * @param value the value; null if there is none
 * @param expiresAt of a put: when the record expires; {@link Instant#MAX} if it does not. No change shows that it has expired
 * @param sequence of versions: the place in the order of all versions; else 0
 * @param time of versions: when it was put; else {@link Instant#EPOCH}
 * @param userVersion of versions: the user version that it belongs to; else 0
 * @param isFromExcluded of deleted ranges: whether the range does not contain the key
 * @param isToIncluded of deleted ranges: whether the range contains the value
 * @param command what a command on user versions does; null for other changes
 * @param snapshot the snapshot that a command on user versions is about; 0 for one that is taken
 */
public record Change(ChangeKind kind, int namespace, byte[] key, byte[] value, Instant expiresAt, long sequence, Instant time,
        int userVersion, boolean isFromExcluded, boolean isToIncluded, VersionCommand command, int snapshot) {}
