package io.kaml;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

/** The package next to the header of the C API. */
class HeaderTest {
    /** Calls of C that Java has in another form, or does without. */
    private static final Set<String> NOT_CALLED = Set.of(
            // Status and Keys have these.
            "kaml_strerror", "kaml_key_u64",
            // For destructors of languages whose errors are not exceptions.
            "kaml_set_last_error",
            // Forms of calls that the package has: shorter keys, no progress, and two steps of one.
            "kaml_list", "kaml_merge", "kaml_backup", "kaml_restore", "kaml_txn_abort", "kaml_txn_free",
            // Reads into memory of the caller, except for the plain one; all copy inside the library.
            "kaml_snapshot_get_into", "kaml_store_get_into", "kaml_txn_read_into",
            // A snapshot is read by namespaces that its caller has, and the keys of a transaction are read one after another.
            "kaml_snapshot_namespaces", "kaml_txn_expect");

    /**
     * Goal: a call that is new in C is new in Java, too, or it is listed above with its reason.
     * Method: the functions of the header are compared with the names in {@code Native.java}, and so are the numbers of status.
     */
    @Test
    void everyCallIsHere() throws IOException {
        String header = Files.readString(Path.of("../../crates/kaml-capi/include/kaml.h")).replaceAll("//[^\n]*", "");
        String called = Files.readString(Path.of("src/main/java/io/kaml/Native.java"));
        Set<String> missing = new TreeSet<>();
        Set<String> both = new TreeSet<>();
        Matcher function = Pattern.compile("\\b(kaml_\\w+)\\((?!\\*)").matcher(header);
        int count = 0;
        while (function.find()) {
            count += 1;
            boolean isCalled = called.contains('"' + function.group(1) + '"');
            boolean isListed = NOT_CALLED.contains(function.group(1));
            if (!isCalled && !isListed) {
                missing.add(function.group(1));
            }
            if (isCalled && isListed) {
                both.add(function.group(1));
            }
        }
        assertTrue(count > 100, count + " functions found");
        assertEquals(Set.of(), missing);
        assertEquals(Set.of(), both);
        Matcher status = Pattern.compile("KAML_(\\w+) = (\\d+),").matcher(header);
        while (status.find()) {
            int code = Integer.parseInt(status.group(2));
            if (code != 0) {
                assertEquals(status.group(1), Status.of(code).name());
            }
        }
    }
}
