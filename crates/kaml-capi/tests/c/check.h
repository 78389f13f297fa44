// What the test programs compare with: a status, or a condition. Each mistake is printed with its line and counted.
#ifndef CHECK_H
#define CHECK_H

#include <kaml.h>
#include <stdio.h>

static int failed_count = 0;

// A call returns this status, and after a failure there is a message.
#define EXPECT(call, expected)                                                                        \
    do {                                                                                              \
        kaml_status status_ = (call);                                                                 \
        if (status_ != (expected)) {                                                                  \
            fprintf(stderr, "line %d: %s: %d, not %d: %s\n", __LINE__, #call, (int)status_,           \
                    (int)(expected), kaml_last_error());                                              \
            failed_count++;                                                                           \
        } else if (status_ != KAML_OK && kaml_last_error()[0] == 0) {                                 \
            fprintf(stderr, "line %d: %s: no message\n", __LINE__, #call);                            \
            failed_count++;                                                                           \
        }                                                                                             \
    } while (0)

#define TRUE_THAT(condition)                                              \
    do {                                                                  \
        if (!(condition)) {                                               \
            fprintf(stderr, "line %d: not %s\n", __LINE__, #condition);   \
            failed_count++;                                               \
        }                                                                 \
    } while (0)

#endif
