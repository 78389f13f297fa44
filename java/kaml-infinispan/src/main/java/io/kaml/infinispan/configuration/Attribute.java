package io.kaml.infinispan.configuration;

/** Names of the attributes of a KAML store. */
enum Attribute {
    PATH("path"),
    DURABILITY("durability"),
    CAPACITY("capacity"),
    KEEP_STALE("keep-stale");

    private final String name;

    Attribute(String name) {
        this.name = name;
    }

    @Override
    public String toString() {
        return name;
    }
}
