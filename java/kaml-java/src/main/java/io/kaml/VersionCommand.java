package io.kaml;

/** What a command on user versions does. */
public enum VersionCommand {
    /** One that this version of the package does not know. */
    UNKNOWN,
    /** A snapshot was taken. */
    SNAPSHOT,
    /** The namespace was returned to its state in the snapshot. */
    ROLL_BACK,
    /** The snapshot was forgotten. */
    FORGET,
    /** The snapshot and all before it were forgotten. */
    FORGET_THROUGH;

    static VersionCommand of(int command) {
        return command > 0 && command < values().length ? values()[command] : UNKNOWN;
    }
}
