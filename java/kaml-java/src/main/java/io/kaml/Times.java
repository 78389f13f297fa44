package io.kaml;

import java.time.Duration;
import java.time.Instant;

/** Durations and moments as the library takes them. */
final class Times {
    /** Of a time to live and of a time: it never comes. */
    static final long NEVER = -1;

    private Times() {}

    /** Milliseconds of a time to live, rounded up. */
    static long timeToLive(Duration duration) {
        if (duration.compareTo(Duration.ZERO) <= 0) {
            throw new KamlException(Status.BAD_ARGUMENT,
                    "a time to live of " + duration + " is not above 0: delete the record instead", false);
        }
        try {
            return duration.plusNanos(999_999).toMillis();
        } catch (ArithmeticException tooLong) {
            return NEVER;
        }
    }

    /** The same as an attribute of a namespace, for which 0 means that records do not expire. */
    static long ofNamespace(Duration duration) {
        long ms = timeToLive(duration);
        return ms == NEVER ? 0 : ms;
    }

    /** Nanoseconds of a rule; a rule that reaches back to before 1677 keeps everything. */
    static long nanos(Duration duration) {
        if (duration.isNegative()) {
            throw new KamlException(Status.BAD_ARGUMENT, "a time of " + duration + " to keep versions is below 0", false);
        }
        try {
            return duration.toNanos();
        } catch (ArithmeticException tooLong) {
            return Long.MAX_VALUE;
        }
    }

    /** Nanoseconds since 1970. */
    static long nanos(Instant time) {
        return nanos(Duration.between(Instant.EPOCH, time));
    }

    static Instant ofMillis(long ms) {
        return ms < 0 ? Instant.MAX : Instant.ofEpochMilli(ms);
    }

    static Instant ofNanos(long ns) {
        return Instant.EPOCH.plusNanos(ns);
    }

    /** Milliseconds since 1970 at which a record expires. */
    static long expiry(Instant time) {
        if (time.compareTo(Instant.EPOCH) <= 0) {
            throw new KamlException(Status.BAD_ARGUMENT, "a record cannot expire at " + time + ": that is not after 1970", false);
        }
        try {
            return time.plusNanos(999_999).toEpochMilli();
        } catch (ArithmeticException | java.time.DateTimeException tooLate) {
            return NEVER;
        }
    }
}
