/**
 * KAML, a key-value SSD in software, for Java.
 *
 * <p>A {@link io.kaml.Device} keeps records in namespaces, on a file or a block device. A put of any number of records is atomic, and
 * durable when it returns. A {@link io.kaml.Store} over a device adds a cache and serializable transactions.
 *
 * <pre>{@code
 * try (Device device = Device.openOrCreate(Path.of("users.kaml"))) {
 *     Namespace users = device.ensureNamespace("users", NamespaceOptions.ordered());
 *     users.put(Keys.text("ada"), Keys.text("Ada Lovelace"));
 *     try (RecordIterator names = users.range(KeyRange.prefix(Keys.text("a")))) {
 *         names.forEachRemaining(entry -> System.out.println(new String(entry.key())));
 *     }
 * }
 * }</pre>
 *
 * <p>Calls throw {@link io.kaml.KamlException}, whose {@link io.kaml.Status} tells why. Objects may be used by many threads at once,
 * except {@link io.kaml.Batch}, {@link io.kaml.RecordIterator} and {@link io.kaml.Transaction}.
 *
 * <p>The package calls {@code libkaml.so} through {@code java.lang.foreign}. It looks for it at the path in the system property
 * {@code kaml.library}, then in the environment variable {@code KAML_LIBRARY}, then where the system searches. Start Java with
 * {@code --enable-native-access=ALL-UNNAMED} to be spared its warning.
 */
package io.kaml;
