/* SPDX-License-Identifier: Apache-2.0 */
/* download_site.h: a server that sends packs, without a catalogue: versions are rows that tests
 * write. /d/{index} is what "latest" is, /v/{index} a URL with a version in it. */
#ifndef TEST_UNIT_PACKS_DOWNLOAD_SITE_H
#define TEST_UNIT_PACKS_DOWNLOAD_SITE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "http/http.h"
#include "http_client.h"
#include "objects_site.h"
#include "services/packs/download.h"
#include "services/packs/integrity.h"
#include "services/packs/transfer.h"
#include "support/metric.h"
#include "tree.h"

enum { SITE_VERSIONS = 64 };

struct site {
    struct objects_site files;
    struct tr_system *system;
    struct packs packs;
    struct http_server *server;
    const char *address;
    struct pack_version versions[SITE_VERSIONS];
    unsigned char *bytes[SITE_VERSIONS];
    _Atomic int version_count;
    _Atomic int latest;
    pthread_mutex_t lock;
    tr_weak connection; /* of the last request */
};

static struct site site = { .lock = PTHREAD_MUTEX_INITIALIZER };

static inline void site_download(struct http_request *request)
{
    struct span name = http_path_part(request, "index");
    struct span user = http_header(request, "X-User");
    struct download_options options = { .user = user };
    uint64_t index = 0;

    if (span_is(name, "latest"))
        index = (uint64_t)atomic_load(&site.latest);
    else
        CHECK(span_u64(name, &index));
    pthread_mutex_lock(&site.lock);
    site.connection = tr_self(http_context(request));
    pthread_mutex_unlock(&site.lock);
    options.is_versioned = http_path(request).at[1] == 'v';
    options.modified_s = (uint64_t)site.versions[index].published_s;
    download_serve(request, &site.packs, &site.versions[index], &options);
}

static const struct http_route site_routes[] = {
    { .method = HTTP_GET, .path = "/d/{index}", .handle = site_download, .flags = HTTP_ROUTE_LONG },
    { .method = HTTP_GET, .path = "/v/{index}", .handle = site_download, .flags = HTTP_ROUTE_LONG },
};

static inline void site_open_with(
    const struct packs_settings *settings, const struct http_limits *limits)
{
    struct http_server_options options = { .listen = "127.0.0.1:0",
        .routes = site_routes,
        .route_count = sizeof site_routes / sizeof site_routes[0],
        .quiet = true,
        .name = "packs" };
    char why[256] = "";

    if (limits != NULL)
        options.limits = *limits;
    objects_site_open(&site.files);
    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .workers = 2 }, &site.system), 0);
    site.packs.system = site.system;
    site.packs.supervisor = tree_create(site.system);
    site.packs.calls.env = tr_system_env(site.system);
    site.packs.objects = site.files.objects;
    site.packs.settings = *settings;
    CHECK_EQ_INT(downloads_start(&site.packs, why, sizeof why), 0);
    CHECK_MSG(
        http_server_start(site.system, &options, why, sizeof why, &site.server) == 0, "%s", why);
    site.address = http_server_address(site.server);
}

static inline void site_open(void)
{
    site_open_with(&(struct packs_settings){ .hashes_max = 2 }, NULL);
}

static inline void site_close(void)
{
    http_server_stop(&site.server);
    CHECK_EQ_INT(transfers_held(site.packs.transfers), 0);
    downloads_stop(&site.packs);
    tr_sender_drop(&site.packs.supervisor);
    tr_system_destroy(&site.system);
    objects_site_close(&site.files);
    for (int i = 0; i < SITE_VERSIONS; i++)
        free(site.bytes[i]);
}

/* A version whose file has these bytes (made from the seed); its index. */
static inline int site_add(uint64_t seed, size_t size)
{
    int index = atomic_load(&site.version_count);
    struct pack_version *version = &site.versions[index];

    CHECK(index < SITE_VERSIONS);
    site.bytes[index] = make_bytes(seed, size);
    version->id = index + 1;
    version->size = size;
    version->published_s = 1700000000 + index;
    snprintf(version->pack_name, sizeof version->pack_name, "pack");
    snprintf(version->version, sizeof version->version, "1.%d", index);
    snprintf(version->type, sizeof version->type, "application/x-pack");
    digest_of(site.bytes[index], size, version->sha256, version->sha256_hex);
    put_object(&site.files, version->sha256_hex, site.bytes[index], size);
    atomic_store(&site.version_count, index + 1);
    return index;
}

static inline void site_path(int index, char path[256])
{
    object_path(&site.files, site.versions[index].sha256_hex, path);
}

/* ---- a client that takes files of any size -------------------------------------------------- */

struct download_result {
    int status;       /* 0: no answer */
    bool is_complete; /* as many bytes came as were promised */
    bool is_right;    /* and they are those of the version */
    uint64_t length;  /* promised */
    uint64_t got;
    char head[4096];
};

static inline const char *result_header(const struct download_result *result, const char *name)
{
    static _Thread_local struct answer answer;

    snprintf(answer.head, sizeof answer.head, "%s", result->head);
    return answer_header(&answer, name);
}

struct taker {
    int fd;
    size_t used; /* of what was read behind the head */
    char bytes[1 << 16];
};

static inline ssize_t taker_read(struct taker *taker, char *bytes, size_t size)
{
    struct pollfd ready = { .fd = taker->fd, .events = POLLIN };

    CHECK_MSG(poll(&ready, 1, 15000) == 1, "the server neither sends nor closes");
    return recv(taker->fd, bytes, size, 0);
}

static inline void taker_ask(struct taker *taker, const char *path, const char *headers)
{
    char text[1024];
    int size =
        snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: test\r\n%s\r\n", path, headers);

    CHECK_EQ_INT(send(taker->fd, text, (size_t)size, MSG_NOSIGNAL), size);
}

/* The head alone. */
static inline void taker_head(struct taker *taker, struct download_result *result)
{
    const char *end = NULL, *length;

    *result = (struct download_result){ 0 };
    taker->used = 0;
    while (end == NULL) {
        ssize_t got = taker_read(taker, taker->bytes + taker->used, 4000 - taker->used);

        if (got <= 0)
            return;
        taker->used += (size_t)got;
        taker->bytes[taker->used] = '\0';
        end = strstr(taker->bytes, "\r\n\r\n");
    }
    memcpy(result->head, taker->bytes, (size_t)(end + 4 - taker->bytes));
    result->status = (int)strtol(result->head + 9, NULL, 10);
    taker->used -= (size_t)(end + 4 - taker->bytes);
    memmove(taker->bytes, end + 4, taker->used);
    length = result_header(result, "Content-Length");
    result->length = length == NULL ? 0 : strtoull(length, NULL, 10);
}

/* All the rest; compared with `right` (NULL: not). */
static inline void taker_body(
    struct taker *taker, struct download_result *result, const unsigned char *right)
{
    result->is_right = true;
    while (taker->used > 0 || result->got < result->length) {
        if (taker->used == 0) {
            ssize_t got = taker_read(taker, taker->bytes, sizeof taker->bytes);

            if (got <= 0)
                break;
            taker->used = (size_t)got;
        }
        CHECK(result->got + taker->used <= result->length);
        if (right != NULL && memcmp(taker->bytes, right + result->got, taker->used) != 0)
            result->is_right = false;
        result->got += taker->used;
        taker->used = 0;
    }
    result->is_complete = result->got == result->length;
}

static inline struct taker *taker_open(int receive_buffer)
{
    struct taker *taker = malloc(sizeof *taker);

    CHECK(taker != NULL);
    taker->fd = client_socket(site.address, receive_buffer);
    taker->used = 0;
    return taker;
}

static inline void taker_close(struct taker *taker)
{
    close(taker->fd);
    free(taker);
}

/* One download on a connection of its own. */
static inline struct download_result take(
    const char *path, const char *headers, const unsigned char *right)
{
    struct taker *taker = taker_open(0);
    struct download_result result;

    taker_ask(taker, path, headers);
    taker_head(taker, &result);
    if (result.status != 0)
        taker_body(taker, &result, right);
    taker_close(taker);
    return result;
}

static inline int64_t hashes(void)
{
    return metric_get(&hasher_metrics[HASHES]);
}

/* Wait for what has no event of its own here. */
static inline void wait_until(bool (*is_so)(void), const char *what)
{
    for (int i = 0; !is_so(); i++) {
        CHECK_MSG(i < 10000, "it does not come: %s", what);
        poll(NULL, 0, 1);
    }
}

#endif
