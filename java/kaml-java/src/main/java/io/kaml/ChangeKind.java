package io.kaml;

/** What a change is. */
public enum ChangeKind {
    /** One that this version of the package does not know. */
    UNKNOWN,
    /** A namespace exists; the key is its name. The stream begins with one for each namespace. */
    NAMESPACE,
    /** A namespace was deleted; the key is its name. */
    NAMESPACE_DELETED,
    /** A record was stored. */
    PUT,
    /** A key was deleted, whether it existed or not. */
    DELETE,
    /** The keys from the key to the value were deleted; null means no bound. */
    DELETE_RANGE,
    /** A version was stored; its value is null if it states that the key is deleted. */
    VERSION,
    /** A command on the user versions of a namespace. */
    VERSION_COMMAND;

    static ChangeKind of(int kind) {
        return kind > 0 && kind < values().length ? values()[kind] : UNKNOWN;
    }
}
