package io.kaml;

import java.time.Instant;

/**
 * A version of a record.
 *
 * @param sequence its place in the order of all changes of the device
 * @param time when it was put
 * @param userVersion the user version that it belongs to: the snapshot of that number and later ones see it, or something newer
 * @param length bytes of its value
 * @param isDeleted whether the record was deleted then
 * @param isHidden whether a rollback hid it
 */
public record Version(long sequence, Instant time, int userVersion, int length, boolean isDeleted, boolean isHidden) {}
