import io.kaml.Device;
import io.kaml.KeyRange;
import io.kaml.Keys;
import io.kaml.Namespace;
import io.kaml.NamespaceOptions;
import io.kaml.RecordIterator;
import io.kaml.Store;
import io.kaml.StoreOptions;
import java.nio.file.Path;

/** Opens a device, stores records, reads them in order, and changes one in a transaction. It can be run again. */
class First {
    public static void main(String[] arguments) {
        Path path = Path.of(arguments.length > 0 ? arguments[0] : "first.kaml");
        try (Device device = Device.openOrCreate(path)) {
            Namespace users = device.ensureNamespace("users", NamespaceOptions.ordered());
            users.put(Keys.text("ada"), Keys.text("Ada Lovelace"));
            users.put(Keys.text("alan"), Keys.text("Alan Turing"));
            try (RecordIterator found = users.range(KeyRange.prefix(Keys.text("a")))) {
                found.forEachRemaining(entry ->
                        System.out.println(new String(entry.key()) + ": " + new String(entry.value())));
            }

            Namespace visits = device.ensureNamespace("visits", NamespaceOptions.ordered());
            try (Store store = new Store(device, 8 << 20, StoreOptions.DEFAULT)) {
                long count = store.run(transaction -> {
                    byte[] before = transaction.readForUpdate(visits, Keys.text("ada"));
                    long next = before == null ? 1 : Keys.u64(before) + 1;
                    transaction.upsert(visits, Keys.text("ada"), Keys.u64(next));
                    return next;
                });
                System.out.println("visit " + count);
            }
        }
    }
}
