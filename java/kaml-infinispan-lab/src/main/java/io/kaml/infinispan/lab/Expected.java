package io.kaml.infinispan.lab;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;

/**
 * What the entries of a cache can be. A change that was acknowledged must be found. One whose result is not known can be found or not, and its
 * key is not used again before the next comparison: it could still be under way.
 */
final class Expected {
    private static final class Key {
        String value;
        String how;
        final Set<String> possible = new HashSet<>();
        boolean isUncertain;

        boolean canBe(String found) {
            return Objects.equals(found, value) || possible.contains(found);
        }
    }

    private final Map<String, Key> keys = new HashMap<>();
    private long acknowledged;
    private long uncertain;
    private long differing;

    synchronized boolean canUse(String key) {
        return !keys.computeIfAbsent(key, absent -> new Key()).isUncertain;
    }

    /** A change begins; null deletes. */
    synchronized void begin(String key, String value) {
        keys.get(key).possible.add(value);
        keys.get(key).isUncertain = true;
    }

    /** It has succeeded; {@code how} is for messages. */
    synchronized void acknowledge(String key, String value, String how) {
        Key known = keys.get(key);
        known.value = value;
        known.how = how;
        known.possible.clear();
        known.isUncertain = false;
        acknowledged += 1;
    }

    /** The keys that do not have a value which they can have. */
    synchronized List<String> wrong(Map<String, String> found) {
        List<String> wrong = new ArrayList<>();
        keys.forEach((key, known) -> {
            if (!known.canBe(found.get(key))) {
                wrong.add(key);
            }
        });
        return wrong;
    }

    /** Compares everything. */
    synchronized List<String> compare(Map<String, String> found) {
        List<String> problems = new ArrayList<>();
        for (String key : found.keySet()) {
            if (!keys.containsKey(key)) {
                problems.add(key + " was never stored, found " + found.get(key));
            }
        }
        for (String key : wrong(found)) {
            problems.add(key + " was acknowledged as " + keys.get(key).value + " " + keys.get(key).how + ", possible were " + keys.get(key).possible + ", found " + found.get(key));
        }
        return problems;
    }

    /**
     * What was uncertain is as it was found on the nodes. They can differ then: an operation of which both the caller and the owner were killed
     * is repeated by nobody, and can have reached some nodes only. The next change of the key makes them the same.
     */
    synchronized void accept(List<Map<String, String>> nodes) {
        keys.forEach((key, known) -> {
            Set<String> found = new HashSet<>();
            nodes.forEach(entries -> found.add(entries.get(key)));
            uncertain += known.isUncertain ? 1 : 0;
            differing += known.isUncertain && found.size() > 1 ? 1 : 0;
            known.value = nodes.getFirst().get(key);
            known.possible.clear();
            if (found.size() > 1) {
                known.possible.addAll(found);
            }
            known.isUncertain = false;
        });
    }

    synchronized long acknowledged() {
        return acknowledged;
    }

    synchronized long uncertain() {
        return uncertain;
    }

    synchronized long differing() {
        return differing;
    }
}
