/* SPDX-License-Identifier: Apache-2.0 */
/* warm.c: the cost of finding a verified file: the look into the snapshot alone, with
 * the reference and the counters, and with the fstat of the pinned descriptor. Prints nanoseconds.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <troupe/troupe.h>

#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "services/packs/integrity.h"

enum { FILES = 500, LOOKS = 4000000, CHECKS = 1000000 };

static struct hash_file files[FILES];
static struct integrity *integrity;

struct result {
    double find_ns, warm_ns;
    uint64_t found;
};

static uint64_t now_ns(void)
{
    const struct tr_env *env = tr_env_real();

    return env->now_ns(env->data);
}

static enum tr_next handle(void *state, struct tr_context *ctx, void *message)
{
    struct result result = { 0 };
    uint64_t x = 1, begin_ns = now_ns();

    (void)state;
    (void)message;
    for (int i = 0; i < LOOKS; i++) {
        uint32_t file;

        x = x * UINT64_C(6364136223846793005) + 1;
        file = (uint32_t)(x >> 33) % FILES;
        result.found += integrity_find(integrity, &files[file]) != NULL;
    }
    result.find_ns = (double)(now_ns() - begin_ns) / LOOKS;
    begin_ns = now_ns();
    for (int i = 0; i < CHECKS; i++) {
        struct pinned_file *pinned;
        uint32_t file;

        x = x * UINT64_C(6364136223846793005) + 1;
        file = (uint32_t)(x >> 33) % FILES;
        pinned = integrity_warm(integrity, &files[file]);
        result.found += pinned != NULL;
        pinned_unref(pinned);
    }
    result.warm_ns = (double)(now_ns() - begin_ns) / CHECKS;
    (void)tr_reply(ctx, 0, &result, sizeof result);
    return TR_GO;
}

static const struct tr_type looker_type = {
    .name = "looker", .message_size = 1, .state_size = 1, .handle = handle
};

static void make_object(const char *folder, uint32_t file)
{
    char path[256], hex[65], bytes[64];
    int fd, size = snprintf(bytes, sizeof bytes, "file %u", file);

    files[file] =
        (struct hash_file){ .key = integrity_key(file, PACK_IDENTITY), .size = (uint64_t)size };
    crypto_sha256(bytes, (size_t)size, files[file].sha256);
    crypto_hex_encode(files[file].sha256, 32, hex);
    hex[64] = '\0';
    snprintf(path, sizeof path, "%s/packs/objects/%s", folder, hex);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0440);
    if (fd < 0 || write(fd, bytes, (size_t)size) != size)
        exit(1);
    close(fd);
}

static void verify(uint32_t file)
{
    enum pack_verdict verdict = PACK_BUSY;

    if (tr_single_flight_wait(integrity_flight(integrity), &files[file], sizeof files[file],
            &verdict, sizeof verdict, NULL, TR_SECONDS(10)) < 0 ||
        verdict != PACK_VERIFIED)
        exit(1);
}

int main(int count, char **arguments)
{
    struct objects *objects = NULL;
    struct tr_system *system = NULL;
    struct integrity_options options;
    struct result result;
    char why[256];
    tr_sender looker;

    if (count != 2) {
        fprintf(stderr, "use: packs-warm EMPTY-FOLDER\n");
        return 2;
    }
    if (objects_open(arguments[1], true, why, sizeof why, &objects) < 0 ||
        tr_system_create(&(struct tr_system_options){ .workers = 1 }, &system) < 0)
        return 1;
    for (uint32_t i = 0; i < FILES; i++)
        make_object(arguments[1], i);
    options = (struct integrity_options){ .source = hash_source_of(objects) };
    if (integrity_start(system, &options, &integrity) < 0 ||
        tr_spawn(system, &looker_type, "", NULL, &looker) < 0)
        return 1;
    for (uint32_t i = 0; i < FILES; i++)
        verify(i);
    if (tr_ask_wait(looker, "", 1, &result, sizeof result, TR_SECONDS(60)) < 0)
        return 1;
    printf("find %.1f ns, warm with fstat %.1f ns, %s\n", result.find_ns, result.warm_ns,
        result.found == LOOKS + CHECKS ? "all found" : "NOT all found");
    tr_sender_drop(&looker);
    integrity_stop(&integrity);
    tr_system_destroy(&system);
    objects_close(&objects);
    return 0;
}
