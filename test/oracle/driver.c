/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crypto/encoding.h"
#include "matrix/crypto/mxcrypto.h"

struct base_random driver_dice;

void driver_check(bool is_good, const char *what)
{
    if (!is_good) {
        (void)fprintf(stderr, "driver: %s\n", what);
        exit(2);
    }
}

void driver_random(void *data, void *bytes, size_t size)
{
    (void)data;
    for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
        uint64_t word = base_random_next(&driver_dice);

        memcpy((char *)bytes + i, &word, size - i < sizeof word ? size - i : sizeof word);
    }
}

/* ---- words ------------------------------------------------------------------------------------ */

uint64_t driver_number(const struct driver_line *line, size_t word)
{
    uint64_t number = 0;

    driver_check(span_u64(line->words[word], &number), "a number is missing");
    return number;
}

struct buffer driver_bytes(const struct driver_line *line, size_t word)
{
    struct span text = line->words[word];
    struct buffer bytes = { 0 };
    size_t size = 0;

    if (span_is(text, "-")) /* no byte at all */
        text.size = 0;
    driver_check(buffer_reserve(&bytes, text.size / 2 + 1) != NULL, "out of memory");
    driver_check(
        crypto_hex_decode(text, bytes.bytes, text.size / 2 + 1, &size) == 0, "not hexadecimal");
    bytes.size = size;
    return bytes;
}

void driver_put_number(struct driver_line *line, uint64_t number)
{
    (void)buffer_format(line->out, " %llu", (unsigned long long)number);
}

void driver_put_text(struct driver_line *line, const void *text, size_t size)
{
    (void)buffer_text(line->out, " ");
    (void)buffer_append(line->out, text, size);
}

void driver_put_hex(struct driver_line *line, const void *bytes, size_t size)
{
    (void)buffer_text(line->out, size == 0 ? " -" : " ");
    for (size_t i = 0; i < size; i++)
        (void)buffer_format(line->out, "%02x", ((const unsigned char *)bytes)[i]);
}

void driver_add(struct driver_line *line, struct driver_list *list, void *object)
{
    driver_check(list->count < DRIVER_OBJECTS_MAX, "there are too many objects");
    driver_put_number(line, list->count);
    list->objects[list->count++] = object;
}

void *driver_get(const struct driver_line *line, size_t word, const struct driver_list *list)
{
    uint64_t number = driver_number(line, word);

    driver_check(number < list->count, "there is no such object");
    return list->objects[number];
}

/* ---- key files: libolm has none --------------------------------------------------------------- */

static const struct mx_random key_file_random = { .fill = driver_random };

static const char *driver_seal_file(struct driver_line *line)
{
    struct mx_key_file_options options = { line->words[1], (uint32_t)driver_number(line, 2) };
    struct buffer sessions = driver_bytes(line, 3), file = { 0 };
    int rc = mx_key_file_encrypt(
        &options, (struct span){ sessions.bytes, sessions.size }, &key_file_random, &file);

    if (rc == 0)
        driver_put_hex(line, file.bytes, file.size);
    buffer_free(&sessions);
    buffer_free(&file);
    return rc == 0 ? NULL : mx_error_text(rc);
}

static const char *driver_open_file(struct driver_line *line)
{
    struct mx_key_file_options options = { line->words[1], (uint32_t)driver_number(line, 2) };
    struct buffer sessions = { 0 }, file = driver_bytes(line, 3);
    int rc = mx_key_file_decrypt(&options, (struct span){ file.bytes, file.size }, &sessions);

    if (rc == 0)
        driver_put_hex(line, sessions.bytes, sessions.size);
    buffer_free(&sessions);
    buffer_free(&file);
    return rc == 0 ? NULL : mx_error_text(rc);
}

/* ---- lines ------------------------------------------------------------------------------------ */

static const char *driver_run(const struct driver_backend *backend, struct driver_line *line)
{
#define DRIVER_RUN(name, arguments, text)                                                          \
    if (span_is(line->words[0], #name)) {                                                          \
        driver_check(line->count == (arguments) + 1, #name " has other arguments");                \
        return backend->name(line);                                                                \
    }
    DRIVER_VERBS(DRIVER_RUN)
#undef DRIVER_RUN
    driver_check(line->count == 4, "there is no such verb");
    if (span_is(line->words[0], "seal_file"))
        return driver_seal_file(line);
    driver_check(span_is(line->words[0], "open_file"), "there is no such verb");
    return driver_open_file(line);
}

int main(int argc, char **argv)
{
    const struct driver_backend *backend = NULL;
    struct buffer out = { 0 };
    char *text = NULL;
    size_t room = 0;
    ssize_t size;

    if (argc == 3 && strcmp(argv[1], "ours") == 0)
        backend = &driver_ours;
    else if (argc == 3 && strcmp(argv[1], "libolm") == 0)
        backend = &driver_libolm;
    driver_check(backend != NULL, "usage: driver ours|libolm SEED");
    base_random_init(&driver_dice, strtoull(argv[2], NULL, 10));
    while ((size = getline(&text, &room, stdin)) > 0) {
        struct driver_line line = { .out = &out };
        struct span rest = { text, (size_t)size - (text[size - 1] == '\n') };
        const char *reason;

        while (line.count < DRIVER_WORDS_MAX && span_cut(&rest, ' ', &line.words[line.count]))
            line.count++;
        buffer_clear(&out);
        (void)buffer_text(&out, "ok");
        reason = driver_run(backend, &line);
        driver_check(out.failed == 0, "out of memory");
        if (reason != NULL)
            (void)printf("no %s\n", reason);
        else
            (void)printf("%.*s\n", (int)out.size, out.bytes);
        (void)fflush(stdout);
    }
    free(text);
    buffer_free(&out);
    return 0;
}
