/* SPDX-License-Identifier: Apache-2.0 */
/* driver.h: one library's Olm, Megolm and SAS behind a pipe, for vodozemac.py. A backend is a table
 * of verbs; `driver ours SEED` and `driver libolm SEED` answer the same lines.
 *
 *     VERB ARGUMENT...  ->  ok RESULT...  |  no REASON
 *
 * Arguments are words: base64 as the protocol has it, hexadecimal for bytes and texts, numbers.
 * Objects are numbers in the order in which they were made. */
#ifndef TEST_ORACLE_DRIVER_H
#define TEST_ORACLE_DRIVER_H

#include "base/random.h"
#include "support/buffer.h"

enum { DRIVER_WORDS_MAX = 12, DRIVER_OBJECTS_MAX = 4096 };

/* The line that is answered. */
struct driver_line {
    struct span words[DRIVER_WORDS_MAX]; /* the verb is the first */
    size_t count;
    struct buffer *out; /* results, each after a space */
};

/* X(name, arguments, what it does) */
#define DRIVER_VERBS(X)                                                                            \
    X(account, 0, "create an account: number, identity key, signing key")                          \
    X(sign, 2, "ACCOUNT HEX: the signature of bytes")                                              \
    X(one_time, 1, "ACCOUNT: a new one-time key, published")                                       \
    X(olm_out, 3, "ACCOUNT IDENTITY ONE_TIME: a session")                                          \
    X(olm_in, 3, "ACCOUNT IDENTITY BODY: a session and the plaintext")                             \
    X(olm_matches, 2, "SESSION BODY: 1 if a pre-key message belongs to the session")               \
    X(olm_encrypt, 2, "SESSION HEX: type and body")                                                \
    X(olm_decrypt, 3, "SESSION TYPE BODY: the plaintext")                                          \
    X(group, 0, "create a sending session: number and id")                                         \
    X(group_key, 1, "GROUP: its key from now on")                                                  \
    X(group_encrypt, 2, "GROUP HEX: a body")                                                       \
    X(inbound, 1, "KEY: a receiving session and its id")                                           \
    X(import, 1, "EXPORT: a receiving session and its id")                                         \
    X(inbound_decrypt, 2, "INBOUND BODY: plaintext and index")                                     \
    X(inbound_export, 2, "INBOUND INDEX: the export from there")                                   \
    X(sas, 0, "begin a verification: number and key")                                              \
    X(sas_their_key, 2, "SAS KEY")                                                                 \
    X(sas_show, 7, "SAS US DEVICE THEM DEVICE TRANSACTION WE_STARTED: decimals and emoji")         \
    X(sas_mac, 9,                                                                                  \
        "SAS US DEVICE THEM DEVICE TRANSACTION IS_THEIRS KEY_ID TEXT: a MAC of the second kind")

#define DRIVER__MEMBER(name, count, text)                                                          \
    const char *(*name)(struct driver_line * line); /* NULL, or the reason of a refusal */
struct driver_backend {
    DRIVER_VERBS(DRIVER__MEMBER)
};
#undef DRIVER__MEMBER

extern const struct driver_backend driver_ours;
extern const struct driver_backend driver_libolm;

/* Everything random comes from the seed. */
extern struct base_random driver_dice;
void driver_random(void *data, void *bytes, size_t size);

/* Return a number; the driver ends on a word that is none. */
uint64_t driver_number(const struct driver_line *line, size_t word);
/* Return a word of hexadecimal as bytes, which the caller frees. */
struct buffer driver_bytes(const struct driver_line *line, size_t word);
void driver_put_number(struct driver_line *line, uint64_t number);
void driver_put_text(struct driver_line *line, const void *text, size_t size);
void driver_put_hex(struct driver_line *line, const void *bytes, size_t size);
/* End the driver if something is wrong with the driver itself. */
void driver_check(bool is_good, const char *what);

/* A list of objects of one kind. */
struct driver_list {
    void *objects[DRIVER_OBJECTS_MAX];
    size_t count;
};
/* Add an object and write its number. */
void driver_add(struct driver_line *line, struct driver_list *list, void *object);
void *driver_get(const struct driver_line *line, size_t word, const struct driver_list *list);

#endif
