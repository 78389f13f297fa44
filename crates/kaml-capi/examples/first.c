// Two records in one atomic Put, and one of them read back. It can be run again and again.
#include <kaml.h>
#include <stdio.h>

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "first.kaml";
    kaml_device device;
    kaml_namespace_id users;
    void *value;
    size_t length;

    if (kaml_open_or_create(path, 64 << 20, NULL, &device)) goto failed;
    if (kaml_namespace(device, "users", &users) && kaml_create_namespace(device, "users", NULL, &users)) goto failed;
    {
        const kaml_record records[] = {
            {users, KAML_PUT, "ada", 3, "Ada Lovelace", 12},
            {users, KAML_PUT, "alan", 4, "Alan Turing", 11},
        };
        if (kaml_put(device, records, 2)) goto failed; // both or none, and durable
    }
    if (kaml_get(device, users, "ada", 3, &value, &length)) goto failed;
    printf("%.*s\n", (int)length, (const char *)value);
    kaml_free(value);
    if (kaml_close(device) == KAML_OK) return 0;

failed:
    fprintf(stderr, "%s\n", kaml_last_error());
    return 1;
}
