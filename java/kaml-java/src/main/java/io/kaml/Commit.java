package io.kaml;

import java.util.List;

/**
 * What was committed together.
 *
 * @param changes at least one change, in their order
 * @param position the position after it: {@link Device#changes(Position)} continues here
 */
public record Commit(List<Change> changes, Position position) {}
