package io.kaml.infinispan.configuration;

/** Names of the elements of a KAML store. */
enum Element {
    KAML_STORE("kaml-store");

    private final String name;

    Element(String name) {
        this.name = name;
    }

    @Override
    public String toString() {
        return name;
    }
}
