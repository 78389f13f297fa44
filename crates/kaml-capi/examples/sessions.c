// A session store: users that are logged in, until they have been silent for some time. Also compiles as C++.
//
// The namespace has a time to live, so a session that has ended is gone by itself, with the room that it took. Each use stores it again, which begins its time
// anew; the expected value makes sure that nobody changed or ended it in between.
//
//     cc sessions.c $(pkg-config --cflags --libs kaml) -o sessions
//     ./sessions sessions.kaml begin ada       # prints a token
//     ./sessions sessions.kaml use TOKEN       # prolongs it, and prints the user and how many uses there were
//     ./sessions sessions.kaml end TOKEN
//     ./sessions sessions.kaml silence 600     # sessions that are begun or used from now on end after so many seconds
#define _POSIX_C_SOURCE 200809L
#include <kaml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SILENCE_MS (1800 * 1000)
#define TOKEN_BYTES 24
#define USER_BYTES 64

// What a session has.
typedef struct {
    uint32_t uses;
    char user[USER_BYTES];
} session;

static void check(kaml_status status, const char *what) {
    if (status == KAML_OK) return;
    fprintf(stderr, "%s: %s\n", what, kaml_last_error());
    exit(1);
}

// A token that nobody can guess, in hexadecimal digits.
static void make_token(char token[2 * TOKEN_BYTES + 1]) {
    unsigned char bytes[TOKEN_BYTES];
    FILE *random = fopen("/dev/urandom", "rb");
    if (random == NULL || fread(bytes, 1, sizeof bytes, random) != sizeof bytes) {
        fprintf(stderr, "/dev/urandom cannot be read\n");
        exit(1);
    }
    fclose(random);
    for (int i = 0; i < TOKEN_BYTES; i++) snprintf(token + 2 * i, 3, "%02x", bytes[i]);
}

static void begin(kaml_device device, kaml_namespace_id sessions, const char *user) {
    char token[2 * TOKEN_BYTES + 1];
    session one;
    memset(&one, 0, sizeof one);
    snprintf(one.user, sizeof one.user, "%s", user);
    make_token(token);
    check(kaml_put_one(device, sessions, token, strlen(token), &one, sizeof one), "begin");
    printf("%s\n", token);
}

// Counts a use, which prolongs the session. `KAML_NOT_FOUND` if it has ended.
static kaml_status use(kaml_device device, kaml_namespace_id sessions, const char *token, session *found) {
    kaml_status status;
    do {
        session before;
        size_t length;
        status = kaml_get_into(device, sessions, token, strlen(token), &before, sizeof before, &length);
        if (status != KAML_OK) return status;
        if (length != sizeof before) return KAML_CORRUPT; // another program wrote it
        *found = before;
        found->uses++;
        status = kaml_compare_and_set(device, sessions, token, strlen(token), &before, sizeof before, found, sizeof *found);
    } while (status == KAML_VALUE_DIFFERS); // somebody else used or ended it in between
    return status;
}

int main(int argc, char **argv) {
    const char *action = argc > 2 ? argv[2] : "", *word = argc > 3 ? argv[3] : "";
    kaml_namespace_options options = KAML_NAMESPACE_OPTIONS_INIT;
    kaml_namespace_id sessions;
    kaml_device device;
    int code = 0;
    if (argc != 4) {
        fprintf(stderr, "usage: sessions DEVICE begin USER | use TOKEN | end TOKEN | silence SECONDS\n");
        return 2;
    }
    check(kaml_open_or_create(argv[1], 64 << 20, NULL, &device), "open");
    kaml_status status = kaml_namespace(device, "sessions", &sessions);
    if (status == KAML_UNKNOWN_NAMESPACE) {
        options.keys = KAML_KEYS_ANY;
        options.time_to_live_ms = SILENCE_MS;
        status = kaml_create_namespace(device, "sessions", &options, &sessions);
    }
    check(status, "sessions");

    if (strcmp(action, "begin") == 0) {
        begin(device, sessions, word);
    } else if (strcmp(action, "use") == 0) {
        session found;
        status = use(device, sessions, word, &found);
        if (status == KAML_NOT_FOUND) {
            fprintf(stderr, "that session has ended\n");
            code = 1;
        } else {
            check(status, "use");
            printf("%s, use %u\n", found.user, (unsigned)found.uses);
        }
    } else if (strcmp(action, "end") == 0) {
        check(kaml_delete(device, sessions, word, strlen(word)), "end");
    } else if (strcmp(action, "silence") == 0) {
        check(kaml_set_time_to_live(device, sessions, (uint64_t)(atof(word) * 1000)), "silence");
    } else {
        fprintf(stderr, "%s: no such action\n", action);
        code = 2;
    }
    check(kaml_close(device), "close");
    return code;
}
