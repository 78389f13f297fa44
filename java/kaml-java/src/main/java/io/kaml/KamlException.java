package io.kaml;

/** A call failed. The message names what failed and what to do. */
public final class KamlException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** Why it failed. */
    private final Status status;
    /** Whether running the transaction again can succeed. */
    private final boolean retryable;

    KamlException(Status status, String message, boolean retryable) {
        super(message);
        this.status = status;
        this.retryable = retryable;
    }

    /**
     * Why it failed.
     *
     * @return the status
     */
    public Status status() {
        return status;
    }

    /**
     * Whether a transaction that ended with this can succeed if it runs again from its beginning.
     *
     * @return true for deadlocks, lock time-outs and lost dependencies
     */
    public boolean isRetryable() {
        return retryable;
    }
}
