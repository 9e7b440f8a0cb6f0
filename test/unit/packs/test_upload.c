/* SPDX-License-Identifier: Apache-2.0 */
/* Files on their way in: pieces, offsets, checks, what a crash leaves, who comes second. */
#include <dirent.h>
#include <poll.h>
#include <zlib.h>
#include <zstd.h>

#include "services/packs/upload_private.h"
#include "site.h"

/* ---- helpers -------------------------------------------------------------------------------- */

static void hex_of(const char *bytes, size_t size, char hex[65])
{
    uint8_t digest[32];

    crypto_sha256(bytes, size, digest);
    hex[crypto_hex_encode(digest, sizeof digest, hex)] = '\0';
}

struct announced {
    const char *pack, *version, *bytes;
    size_t size;
    const char *encoding; /* NULL: none */
};

static void write_announcement(const struct announced *announced, char body[512])
{
    char hex[65];

    hex_of(announced->bytes, announced->size, hex);
    (void)snprintf(body, 512, "{'version':'%s','size':%zu,'sha256':'%s'%s%s%s}", announced->version,
        announced->size, hex, announced->encoding == NULL ? "" : ",'encoding':'",
        announced->encoding == NULL ? "" : announced->encoding,
        announced->encoding == NULL ? "" : "'");
}

/* Its id; in memory that is the caller's. */
static char *create(const struct site *site, const struct announced *announced, unsigned status)
{
    char call[256], body[512];

    write_announcement(announced, body);
    (void)snprintf(call, sizeof call, "POST admin/packs/%s/uploads", announced->pack);
    return ask_for(site, TOKEN, call, body, status, "upload");
}

static char *create_text(
    const struct site *site, const char *pack, const char *version, const char *bytes)
{
    return create(site,
        &(struct announced){
            .pack = pack, .version = version, .bytes = bytes, .size = strlen(bytes) },
        201);
}

/* A PATCH that says it is `length` bytes long, and has `size` of them; the connection stays open.
 */
static int begin_patch(const struct site *site, const char *id, const char *offset,
    const char *bytes, size_t size, size_t length)
{
    char head[1600];
    int fd = web_connect(admin_address(site->admin));

    (void)snprintf(head, sizeof head,
        "PATCH /v1/admin/uploads/%s HTTP/1.1\r\nHost: x\r\n%sUpload-Offset: %s\r\n"
        "Content-Length: %zu\r\nConnection: close\r\n\r\n",
        id, site->headers[TOKEN], offset, length);
    web_send(fd, head, strlen(head));
    web_send(fd, bytes, size);
    return fd;
}

static void want_patch(const struct site *site, const char *id, const char *offset,
    const char *bytes, size_t size, unsigned status, const char *part)
{
    int fd = begin_patch(site, id, offset, bytes, size, size);
    struct web_answer answer = { 0 };

    web_receive(fd, &answer);
    CHECK_MSG(answer.status == status && strstr(answer.text, part) != NULL,
        "wanted %u with '%s', got:\n%s", status, part, answer.text);
    web_answer_free(&answer);
    close(fd);
}

static void want_id(const struct site *site, const char *method, const char *id, const char *rest,
    unsigned status, const char *parts)
{
    char call[256];

    (void)snprintf(call, sizeof call, "%s admin/uploads/%s%s", method, id, rest);
    want(site, TOKEN, call, NULL, status, parts);
}

static void finish(const struct site *site, const char *id, unsigned status, const char *parts)
{
    want_id(site, "POST", id, "/finish", status, parts);
}

static unsigned count_files(const struct site *site, const char *folder)
{
    char path[192];
    const struct dirent *entry;
    unsigned count = 0;
    DIR *names;

    (void)snprintf(path, sizeof path, "%s/packs/%s", site->place, folder);
    names = opendir(path);
    CHECK(names != NULL);
    while ((entry = readdir(names)) != NULL)
        count += entry->d_name[0] != '.';
    closedir(names);
    return count;
}

static void check_nothing_is_left(const struct site *site)
{
    CHECK_EQ_U64(count_files(site, "incoming"), 0);
    CHECK_EQ_INT(site_number(site, "SELECT COUNT(*) FROM pack_uploads"), 0);
}

/* ---- the way in ----------------------------------------------------------------------------- */

TEST(upload, arrives_in_pieces_and_becomes_a_version_that_is_not_active)
{
    struct site site;
    struct stat status;
    char path[192], *id;

    site_begin(&site);
    site_register(&site, "core");
    id = create_text(&site, "core", "1.0.0", "first second third");
    want_id(&site, "GET", id, "", 200, "Upload-Offset: 0|Upload-Length: 18|'offset':0");
    want_patch(&site, id, "0", "first ", 6, 204, "Upload-Offset: 6\r\n");
    want_patch(&site, id, "6", "second ", 7, 204, "Upload-Offset: 13\r\n");
    want_id(&site, "HEAD", id, "", 200, "Upload-Offset: 13|no-store");
    finish(&site, id, 409, "UploadIncomplete|Upload-Offset: 13");
    want_patch(&site, id, "13", "third", 5, 204, "Upload-Offset: 18\r\n");
    want_patch(&site, id, "18", "", 0, 204, "Upload-Offset: 18\r\n");
    finish(
        &site, id, 201, "'package_id':'core'|'version':'1.0.0'|'size_bytes':18|'is_active':false");
    finish(&site, id, 404, "UploadNotFound");
    check_nothing_is_left(&site);
    site_object_path(&site, "first second third", path);
    CHECK_EQ_INT(stat(path, &status), 0);
    CHECK_EQ_INT(status.st_size, 18);
    CHECK_EQ_INT(status.st_mode & 0777, 0440);
    want(&site, ANYONE, "GET packs/core/download", NULL, 404, "PackNotFound");
    site_publish(&site, "core", "1.0.0");
    want(&site, ANYONE, "GET packs/core/download", NULL, 200, "first second third");
    want(&site, TOKEN, "GET admin/audit", NULL, 200, "'action':'upload'");
    free(id);
    site_end(&site);
}

TEST(upload, an_empty_file_is_a_file)
{
    struct site site;
    char *id;

    site_begin(&site);
    site_register(&site, "core");
    id = create_text(&site, "core", "1.0.0", "");
    finish(&site, id, 201, "'size_bytes':0");
    free(id);
    site_end(&site);
}

TEST(upload, of_an_admin_session_on_the_public_listener_is_the_same)
{
    struct site site;
    char call[256], body[512], head[2048], *id;
    struct web_answer answer = { 0 };
    int fd;

    site_begin(&site);
    site_register(&site, "core");
    write_announcement(
        &(struct announced){ .pack = "core", .version = "1", .bytes = "abc", .size = 3 }, body);
    want(&site, ANYONE, "POST admin/packs/core/uploads", body, 401, "");
    want(&site, USER, "POST admin/packs/core/uploads", body, 403, "");
    want(&site, STRANGER, "POST admin/packs/core/uploads", body, 401, "");
    want(&site, TOKENLESS, "POST admin/packs/core/uploads", body, 401, "");
    want(&site, WRONG, "POST admin/packs/core/uploads", body, 401, "");
    id = ask_for(&site, BOSS, "POST admin/packs/core/uploads", body, 201, "upload");
    fd = web_connect(http_server_address(site.server));
    (void)snprintf(head, sizeof head,
        "PATCH /v1/admin/uploads/%s HTTP/1.1\r\nHost: x\r\n%sUpload-Offset: 0\r\n"
        "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
        id, site.headers[BOSS]);
    web_send(fd, head, strlen(head));
    web_receive(fd, &answer);
    CHECK_MSG(answer.status == 204, "%s", answer.text);
    web_answer_free(&answer);
    close(fd);
    (void)snprintf(call, sizeof call, "POST admin/uploads/%s/finish", id);
    want(&site, USER, call, NULL, 403, "");
    want(&site, BOSS, call, NULL, 201, "'is_active':false");
    free(id);
    site_end(&site);
}

TEST(upload, full_piece_ends_where_a_piece_of_the_file_ends)
{
    static const struct {
        uint64_t offset;
        size_t size, written;
    } cases[] = {
        { 0, 0, 0 },
        { 0, 1, 1 },
        { 100001, UPLOAD_PIECE - 1, UPLOAD_PIECE - 1 }, /* the last of a request */
        { 0, UPLOAD_PIECE, UPLOAD_PIECE },
        { 0, UPLOAD_PIECE + 1, UPLOAD_PIECE },
        { 1, UPLOAD_PIECE, UPLOAD_PIECE - 1 },
        { UPLOAD_PIECE - 1, UPLOAD_PIECE, 1 },
        { UPLOAD_PIECE - 1, UPLOAD_PIECE + 1, UPLOAD_PIECE + 1 },
        { (UINT64_C(1) << 40) + 5, 2 * UPLOAD_PIECE, 2 * UPLOAD_PIECE - 5 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CHECK_EQ_U64(upload_write_size(cases[i].offset, cases[i].size), cases[i].written);
}

/* 3 MiB: more than the pieces that are in memory. */
TEST(upload, larger_than_its_memory_arrives_whole)
{
    enum { SIZE = 3 << 20 };
    struct site site;
    char *bytes = malloc(SIZE), *id, hex[65], path[192], *back = malloc(SIZE);
    FILE *file;

    CHECK(bytes != NULL && back != NULL);
    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = (char)(i * 31 + i / 977);
    site_begin(&site);
    site_register(&site, "core");
    id = create(&site,
        &(struct announced){ .pack = "core", .version = "1", .bytes = bytes, .size = SIZE }, 201);
    want_patch(&site, id, "0", bytes, 100001, 204, "Upload-Offset: 100001\r\n");
    want_patch(
        &site, id, "100001", bytes + 100001, SIZE - 100001, 204, "Upload-Offset: 3145728\r\n");
    finish(&site, id, 201, "");
    hex_of(bytes, SIZE, hex);
    (void)snprintf(path, sizeof path, "%s/packs/objects/%s", site.place, hex);
    file = fopen(path, "r");
    CHECK(file != NULL);
    CHECK_EQ_U64(fread(back, 1, SIZE, file), SIZE);
    CHECK_EQ_INT(memcmp(bytes, back, SIZE), 0);
    fclose(file);
    free(id);
    free(bytes);
    free(back);
    site_end(&site);
}

/* ---- refusals ------------------------------------------------------------------------------- */

TEST(upload, wrong_offset_is_told_the_right_one)
{
    struct site site;
    char *id;

    site_begin(&site);
    site_register(&site, "core");
    id = create_text(&site, "core", "1.0.0", "abcdef");
    want_patch(&site, id, "0", "abc", 3, 204, "Upload-Offset: 3\r\n");
    want_patch(&site, id, "0", "abc", 3, 409, "Upload-Offset: 3\r\n");
    want_patch(&site, id, "4", "abc", 3, 409, "UploadOffsetMismatch");
    want_patch(&site, id, "x", "abc", 3, 400, "Upload-Offset");
    want_patch(&site, id, "-1", "abc", 3, 400, "Upload-Offset");
    want_patch(&site, id, "18446744073709551616", "abc", 3, 400, "Upload-Offset");
    want_patch(&site, id, "3\r\nUpload-Offset: 4", "def", 3, 400, "Upload-Offset");
    want_patch(&site, id, "3", "def", 3, 204, "Upload-Offset: 6\r\n");
    finish(&site, id, 201, "");
    free(id);
    site_end(&site);
}

TEST(upload, more_than_was_announced_is_refused_before_it_is_read)
{
    struct site site;
    struct web_answer answer = { 0 };
    char head[1600], *id;
    int fd;

    site_begin(&site);
    site_register(&site, "core");
    id = create_text(&site, "core", "1.0.0", "abcdef");
    /* The body never comes: the answer is not about it. */
    fd = begin_patch(&site, id, "0", "", 0, 7);
    web_receive(fd, &answer);
    CHECK_MSG(
        answer.status == 413 && strstr(answer.text, "UploadTooLarge") != NULL, "%s", answer.text);
    web_answer_free(&answer);
    close(fd);
    /* One that does not say how long it is. */
    fd = web_connect(admin_address(site.admin));
    (void)snprintf(head, sizeof head,
        "PATCH /v1/admin/uploads/%s HTTP/1.1\r\nHost: x\r\n%sUpload-Offset: 0\r\n"
        "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n7\r\nabcdefg\r\n0\r\n\r\n",
        id, site.headers[TOKEN]);
    web_send(fd, head, strlen(head));
    answer = (struct web_answer){ 0 };
    web_receive(fd, &answer);
    CHECK_MSG(answer.status == 413, "%s", answer.text);
    web_answer_free(&answer);
    close(fd);
    want_id(&site, "GET", id, "", 200, "Upload-Offset: 0");
    want_patch(&site, id, "0", "abcdef", 6, 204, "Upload-Offset: 6\r\n");
    finish(&site, id, 201, "");
    free(id);
    site_end(&site);
}

TEST(upload, wrong_checksum_leaves_nothing)
{
    struct site site;
    char *id;

    site_begin(&site);
    site_register(&site, "core");
    id = create_text(&site, "core", "1.0.0", "abcdef");
    want_patch(&site, id, "0", "abcdeF", 6, 204, "Upload-Offset: 6\r\n");
    finish(&site, id, 422, "ChecksumMismatch");
    want_id(&site, "GET", id, "", 404, "UploadNotFound");
    CHECK_EQ_U64(count_files(&site, "objects"), 0);
    check_nothing_is_left(&site);
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_versions"), 0);
    free(id);
    /* Nothing stands in the way of the right bytes. */
    id = create_text(&site, "core", "1.0.0", "abcdef");
    want_patch(&site, id, "0", "abcdef", 6, 204, "Upload-Offset: 6\r\n");
    finish(&site, id, 201, "");
    free(id);
    site_end(&site);
}

TEST(upload, what_cannot_be_is_refused_at_once)
{
    static const struct {
        const char *call, *body;
        unsigned status;
        const char *part;
    } cases[] = {
#define SHA "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
        { "POST admin/packs/none/uploads", "{'version':'1','size':3,'sha256':'" SHA "'}", 404,
            "PackNotFound" },
        { "POST admin/packs/core/uploads", "{'version':'1','size':3,'sha256':'" SHA "'", 400,
            "InvalidRequest" },
        { "POST admin/packs/core/uploads", "{'size':3,'sha256':'" SHA "'}", 400, "version" },
        { "POST admin/packs/core/uploads", "{'version':'../1','size':3,'sha256':'" SHA "'}", 400,
            "version" },
        { "POST admin/packs/core/uploads", "{'version':'..','size':3,'sha256':'" SHA "'}", 400,
            "version" },
        { "POST admin/packs/core/uploads", "{'version':'1','size':-3,'sha256':'" SHA "'}", 400,
            "size" },
        { "POST admin/packs/core/uploads", "{'version':'1','size':3.5,'sha256':'" SHA "'}", 400,
            "size" },
        { "POST admin/packs/core/uploads",
            "{'version':'1','size':3,'sha256':'../../../etc/passwd'}", 400, "sha256" },
        { "POST admin/packs/core/uploads", "{'version':'1','size':3,'sha256':'x" SHA "'}", 400,
            "sha256" },
        { "POST admin/packs/core/uploads",
            "{'version':'1','size':3,'sha256':'" SHA "','type':'text/html; x=y'}", 400, "type" },
        { "POST admin/packs/core/uploads",
            "{'version':'1','size':3,'sha256':'" SHA "','encoding':'br'}", 400, "encoding" },
        { "POST admin/packs/core/uploads",
            "{'version':'2','size':3,'sha256':'" SHA "','encoding':'gzip'}", 404,
            "VersionNotFound" },
        { "POST admin/packs/core/uploads", "{'version':'1.0.0','size':3,'sha256':'" SHA "'}", 409,
            "VersionExists" },
        { "GET admin/uploads/../../packs", NULL, 400, "" },
        { "GET admin/uploads/..%2f..%2fpacks", NULL, 400, "" },
        { "GET admin/uploads/0123456789abcdef0123456789abcde", NULL, 404, "UploadNotFound" },
        { "GET admin/uploads/0123456789abcdef0123456789abcdef", NULL, 404, "UploadNotFound" },
        { "GET admin/uploads/0123456789ABCDEF0123456789ABCDEF", NULL, 404, "UploadNotFound" },
        { "DELETE admin/uploads/0123456789abcdef0123456789abcdef", NULL, 404, "UploadNotFound" },
        { "POST admin/uploads/0123456789abcdef0123456789abcdef/finish", NULL, 404,
            "UploadNotFound" },
    };
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "live bytes");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        want(&site, TOKEN, cases[i].call, cases[i].body, cases[i].status, cases[i].part);
    check_nothing_is_left(&site);
    CHECK_EQ_U64(count_files(&site, "objects"), 1);
    want(&site, ANYONE, "GET packs/core/download", NULL, 200, "live bytes");
    site_end(&site);
}

/* Defects 3 and 4: a second upload of a version changes nothing about the first. */
TEST(upload, of_a_version_that_was_made_meanwhile_changes_nothing)
{
    struct site site;
    char *first, *second;

    site_begin(&site);
    site_register(&site, "core");
    first = create_text(&site, "core", "1.0.0", "the first");
    second = create_text(&site, "core", "1.0.0", "the second");
    want_patch(&site, first, "0", "the first", 9, 204, "");
    want_patch(&site, second, "0", "the second", 10, 204, "");
    finish(&site, first, 201, "");
    site_publish(&site, "core", "1.0.0");
    finish(&site, second, 409, "VersionExists");
    want(&site, ANYONE, "GET packs/core/download", NULL, 200, "the first");
    CHECK_EQ_U64(count_files(&site, "objects"), 1); /* nobody wants the second's */
    check_nothing_is_left(&site);
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_versions WHERE is_active = 1"), 1);
    free(first);
    free(second);
    site_end(&site);
}

TEST(upload, does_not_touch_an_object_that_is_there)
{
    struct site site;
    struct stat before, after;
    char path[192], *id;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "the same bytes");
    site_object_path(&site, "the same bytes", path);
    CHECK_EQ_INT(stat(path, &before), 0);
    id = create_text(&site, "core", "2.0.0", "the same bytes");
    want_patch(&site, id, "0", "the same bytes", 14, 204, "");
    finish(&site, id, 201, "");
    CHECK_EQ_INT(stat(path, &after), 0);
    CHECK_EQ_U64(before.st_ino, after.st_ino);
    CHECK_EQ_INT(before.st_ctim.tv_nsec, after.st_ctim.tv_nsec);
    CHECK_EQ_U64(count_files(&site, "objects"), 1);
    check_nothing_is_left(&site);
    free(id);
    site_end(&site);
}

/* The server this one replaces wrote uploads over the file that was being served, under the name
 * that the client gave, and made them active at once. */
TEST(defect_4, an_upload_never_touches_what_is_served_and_is_not_served_by_itself)
{
    struct site site;
    struct stat before, after;
    char path[192], *id;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "live bytes");
    site_object_path(&site, "live bytes", path);
    CHECK_EQ_INT(stat(path, &before), 0);
    id = create_text(&site, "core", "2.0.0", "new bytes, cut off");
    want_patch(&site, id, "0", "new bytes", 9, 204, "");
    want(&site, ANYONE, "GET packs/core/download", NULL, 200, "live bytes");
    want_patch(&site, id, "9", ", cut off", 9, 204, "");
    want(&site, ANYONE, "GET packs/core/download", NULL, 200, "live bytes");
    finish(&site, id, 201, "'is_active':false");
    want(&site, ANYONE, "GET packs/core/download", NULL, 200, "live bytes");
    want(&site, ANYONE, "GET packs/core/versions/2.0.0/download", NULL, 404, "VersionNotFound");
    CHECK_EQ_INT(stat(path, &after), 0);
    CHECK_EQ_U64(before.st_ino, after.st_ino);
    CHECK_EQ_INT(before.st_size, after.st_size);
    CHECK_EQ_INT(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
    CHECK_EQ_INT(before.st_ctim.tv_nsec, after.st_ctim.tv_nsec);
    free(id);
    site_end(&site);
}

TEST(upload, replaces_an_object_that_is_damaged)
{
    struct site site;
    char path[192], *id;

    site_begin(&site);
    site_register(&site, "core");
    site_object_path(&site, "the right bytes", path);
    site_write_file(path, "the wrong bytes");
    id = create_text(&site, "core", "1.0.0", "the right bytes");
    want_patch(&site, id, "0", "the right bytes", 15, 204, "");
    finish(&site, id, 201, "");
    site_publish(&site, "core", "1.0.0");
    want(&site, ANYONE, "GET packs/core/download", NULL, 200, "the right bytes");
    free(id);
    site_end(&site);
}

TEST(upload, over_the_quota_is_refused)
{
    struct site site;
    char *id;

    site_begin(&site);
    site.packs->settings.quota_bytes = 20;
    site_add_pack(&site, "core", "1.0.0", "ten bytes.");
    want(&site, TOKEN, "POST admin/packs/core/uploads",
        "{'version':'2','size':21,'sha256':'" SHA "'}", 413, "PackTooLarge");
    want(&site, TOKEN, "POST admin/packs/core/uploads",
        "{'version':'2','size':11,'sha256':'" SHA "'}", 507, "QuotaExceeded");
    id = create_text(&site, "core", "2", "six...");
    want(&site, TOKEN, "POST admin/packs/core/uploads",
        "{'version':'3','size':5,'sha256':'" SHA "'}", 507, "QuotaExceeded");
    want_id(&site, "DELETE", id, "", 204, "");
    want(&site, TOKEN, "POST admin/packs/core/uploads",
        "{'version':'3','size':5,'sha256':'" SHA "'}", 201, "");
    free(id);
    site_end(&site);
}

TEST(upload, there_are_so_many_at_a_time)
{
    struct site site;
    char body[256];

    site_begin(&site);
    site_register(&site, "core");
    for (unsigned i = 0; i <= UPLOADS_MAX; i++) {
        (void)snprintf(body, sizeof body, "{'version':'%u','size':5,'sha256':'" SHA "'}", i);
        want(&site, TOKEN, "POST admin/packs/core/uploads", body, i < UPLOADS_MAX ? 201 : 503,
            i < UPLOADS_MAX ? "" : "Retry-After|TooManyUploads");
    }
    site_end(&site);
}

TEST(upload, is_removed_on_demand)
{
    struct site site;
    char *id;

    site_begin(&site);
    site_register(&site, "core");
    id = create_text(&site, "core", "1.0.0", "abcdef");
    want_patch(&site, id, "0", "abc", 3, 204, "");
    want_id(&site, "DELETE", id, "", 204, "");
    want_id(&site, "GET", id, "", 404, "UploadNotFound");
    want_patch(&site, id, "3", "def", 3, 404, "UploadNotFound");
    check_nothing_is_left(&site);
    free(id);
    site_end(&site);
}

/* ---- resuming ------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_shut, is_reached;
} gate = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

/* On the pool, before an object is removed. */
static void stand_at_gate(void)
{
    pthread_mutex_lock(&gate.lock);
    gate.is_reached = true;
    pthread_cond_broadcast(&gate.changed);
    while (gate.is_shut)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

struct removal {
    const struct site *site;
    const char *id;
};

static void *remove_upload(void *data)
{
    const struct removal *removal = data;

    want_id(removal->site, "DELETE", removal->id, "", 204, "");
    return NULL;
}

TEST(upload, of_bytes_that_are_just_being_removed_keeps_its_object)
{
    struct site site;
    struct removal removal = { .site = &site };
    char *first, *second;
    pthread_t thread;

    site_begin(&site);
    site_register(&site, "core");
    site_register(&site, "other");
    first = create_text(&site, "core", "1.0.0", "the same");
    want_patch(&site, first, "0", "the same", 8, 204, "Upload-Offset: 8\r\n");
    gate.is_shut = true;
    atomic_store(&upload_removal_hook, stand_at_gate);
    removal.id = first;
    CHECK_EQ_INT(pthread_create(&thread, NULL, remove_upload, &removal), 0);
    pthread_mutex_lock(&gate.lock);
    while (!gate.is_reached)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
    /* Nobody wanted the object when that began; now somebody does. */
    second = create_text(&site, "other", "1.0.0", "the same");
    want_patch(&site, second, "0", "the same", 8, 204, "Upload-Offset: 8\r\n");
    finish(&site, second, 409, "UploadBusy|Upload-Offset: 8");
    pthread_mutex_lock(&gate.lock);
    gate.is_shut = false;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
    CHECK_EQ_INT(pthread_join(thread, NULL), 0);
    atomic_store(&upload_removal_hook, NULL);
    finish(&site, second, 201, "'package_id':'other'");
    check_nothing_is_left(&site);
    site_publish(&site, "other", "1.0.0");
    want(&site, ANYONE, "GET packs/other/download", NULL, 200, "the same");
    free(first);
    free(second);
    site_end(&site);
}

TEST(upload, announced_again_is_the_same_one)
{
    struct site site;
    const struct announced announced = {
        .pack = "core", .version = "1.0.0", .bytes = "abcdef", .size = 6
    };
    char *first, *second;

    site_begin(&site);
    site_register(&site, "core");
    first = create(&site, &announced, 201);
    want_patch(&site, first, "0", "abc", 3, 204, "");
    second = create(&site, &announced, 200);
    CHECK_EQ_STR(first, second);
    want_id(&site, "GET", second, "", 200, "'offset':3");
    free(first);
    free(second);
    site_end(&site);
}

/* Its table stays: the piece that was being written is in the file or not, and the client is told
 * which. */
TEST(upload, goes_on_when_its_actor_fails)
{
    struct tr_actor_info actor;
    struct site site;
    char *id;

    site_begin(&site);
    site_register(&site, "core");
    id = create_text(&site, "core", "1.0.0", "before and after");
    want_patch(&site, id, "0", "before ", 7, 204, "");
    actor = tree_find(site.system, "packs uploads");
    CHECK_EQ_INT(tr_inspect_kill(site.system, actor.id), 0);
    want_id(&site, "GET", id, "", 200, "Upload-Offset: 7");
    want_patch(&site, id, "7", "and ", 4, 204, "Upload-Offset: 11\r\n");
    CHECK_EQ_INT(tr_inspect_kill(site.system, actor.id), 0);
    want_patch(&site, id, "11", "after", 5, 204, "Upload-Offset: 16\r\n");
    CHECK_EQ_INT(tr_inspect_kill(site.system, actor.id), 0);
    finish(&site, id, 201, "");
    CHECK_EQ_U64(tree_find(site.system, "packs uploads").restarts, 3);
    check_nothing_is_left(&site);
    free(id);
    site_end(&site);
}

static _Atomic uint32_t removals_begun;
static _Atomic bool may_remove;

static void wait_in_removal(void)
{
    atomic_fetch_add(&removals_begun, 1);
    while (!atomic_load(&may_remove))
        (void)poll(NULL, 0, 1);
}

/* The removal that runs on the pool belongs to the life before; the next one repeats it after. */
TEST(upload, goes_on_with_a_removal_when_its_actor_fails)
{
    struct tr_actor_info actor;
    struct web_answer answer = { 0 };
    struct site site;
    char head[1600], *id;
    int fd;

    site_begin(&site);
    site_register(&site, "core");
    id = create_text(&site, "core", "1.0.0", "nobody wants this");
    atomic_store(&upload_removal_hook, wait_in_removal);
    fd = web_connect(admin_address(site.admin));
    (void)snprintf(head, sizeof head,
        "DELETE /v1/admin/uploads/%s HTTP/1.1\r\nHost: x\r\n%sConnection: close\r\n\r\n", id,
        site.headers[TOKEN]);
    web_send(fd, head, strlen(head));
    while (atomic_load(&removals_begun) == 0)
        (void)poll(NULL, 0, 1);
    actor = tree_find(site.system, "packs uploads");
    CHECK_EQ_INT(tr_inspect_kill(site.system, actor.id), 0);
    web_receive(fd, &answer); /* the asker of an actor that failed gets an answer */
    CHECK(answer.status >= 500);
    web_answer_free(&answer);
    close(fd);
    atomic_store(&may_remove, true);
    while (atomic_load(&removals_begun) < 2)
        (void)poll(NULL, 0, 1);
    atomic_store(&upload_removal_hook, NULL);
    want_id(&site, "GET", id, "", 404, "UploadNotFound");
    check_nothing_is_left(&site);
    free(id);
    site_end(&site);
}

static int begin_create(const struct site *site, const struct announced *announced)
{
    char head[2400], body[512], *json;
    int fd = web_connect(admin_address(site->admin));

    write_announcement(announced, body);
    json = quoted(body);
    (void)snprintf(head, sizeof head,
        "POST /v1/admin/packs/%s/uploads HTTP/1.1\r\nHost: x\r\n%sContent-Type: "
        "application/json\r\n"
        "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
        announced->pack, site->headers[TOKEN], strlen(json), json);
    web_send(fd, head, strlen(head));
    free(json);
    return fd;
}

static unsigned end_create(int fd)
{
    struct web_answer answer = { 0 };
    unsigned status;

    web_receive(fd, &answer);
    status = (unsigned)answer.status;
    web_answer_free(&answer);
    close(fd);
    return status;
}

/* Its row was never stored: the next life removes it instead of taking it for a complete one. The
 * removals of other uploads keep every thread of the pool busy meanwhile. */
TEST(upload, being_created_is_removed_when_its_actor_fails)
{
    enum { POOL = 12 }; /* threads: site.h */
    const struct announced announced = {
        .pack = "core", .version = "2.0.0", .bytes = "abcdef", .size = 6
    };
    char head[1600], bytes[32], version[32], *ids[POOL];
    struct pollfd creates[2];
    struct site site;
    int deletes[POOL];
    unsigned status;

    site_begin(&site);
    site_register(&site, "core");
    atomic_store(&upload_removal_hook, wait_in_removal);
    for (int i = 0; i < POOL; i++) {
        (void)snprintf(bytes, sizeof bytes, "the bytes of %d", i);
        (void)snprintf(version, sizeof version, "1.0.%d", i);
        ids[i] = create_text(&site, "core", version, bytes);
    }
    for (int i = 0; i < POOL; i++) {
        deletes[i] = web_connect(admin_address(site.admin));
        (void)snprintf(head, sizeof head,
            "DELETE /v1/admin/uploads/%s HTTP/1.1\r\nHost: x\r\n%sConnection: close\r\n\r\n",
            ids[i], site.headers[TOKEN]);
        web_send(deletes[i], head, strlen(head));
    }
    while (atomic_load(&removals_begun) < POOL)
        (void)poll(NULL, 0, 1);
    /* The second of two equal ones is refused while the first is being created. */
    for (int i = 0; i < 2; i++)
        creates[i] = (struct pollfd){ .fd = begin_create(&site, &announced), .events = POLLIN };
    (void)poll(creates, 2, -1);
    CHECK_EQ_INT(end_create(creates[creates[0].revents == 0].fd), 409);
    CHECK_EQ_INT(tr_inspect_kill(site.system, tree_find(site.system, "packs uploads").id), 0);
    CHECK(end_create(creates[creates[0].revents != 0].fd) >= 500);
    atomic_store(&may_remove, true);
    do
        status = end_create(begin_create(&site, &announced));
    while (status == 409);
    CHECK_EQ_INT(status, 201);
    for (int i = 0; i < POOL; i++) {
        (void)end_create(deletes[i]);
        free(ids[i]);
    }
    atomic_store(&upload_removal_hook, NULL);
    site_end(&site);
}

TEST(upload, goes_on_after_a_restart)
{
    struct site site;
    char *id;

    site_begin(&site);
    site_register(&site, "core");
    id = create_text(&site, "core", "1.0.0", "before and after");
    want_patch(&site, id, "0", "before ", 7, 204, "");
    site_close(&site);
    site_open(&site);
    want_id(&site, "GET", id, "", 200, "Upload-Offset: 7");
    want_patch(&site, id, "7", "and ", 4, 204, "Upload-Offset: 11\r\n");
    site_close(&site);
    site_open(&site);
    want_patch(&site, id, "11", "after", 5, 204, "Upload-Offset: 16\r\n");
    site_close(&site);
    site_open(&site);
    finish(&site, id, 201, "");
    site_publish(&site, "core", "1.0.0");
    want(&site, ANYONE, "GET packs/core/download", NULL, 200, "before and after");
    free(id);
    site_end(&site);
}

/* The digest of what came before a restart is that of the file, not of what was meant. */
TEST(upload, changed_while_nobody_looked_is_noticed)
{
    struct site site;
    char path[192], *id;

    site_begin(&site);
    site_register(&site, "core");
    id = create_text(&site, "core", "1.0.0", "before and after");
    want_patch(&site, id, "0", "before ", 7, 204, "");
    site_close(&site);
    (void)snprintf(path, sizeof path, "%s/packs/incoming/%s", site.place, id);
    site_write_file(path, "beFore ");
    site_open(&site);
    want_patch(&site, id, "7", "and after", 9, 204, "");
    finish(&site, id, 422, "ChecksumMismatch");
    CHECK_EQ_U64(count_files(&site, "objects"), 0);
    free(id);
    site_end(&site);
}

/* A crash between the rename and the catalogue's unit. */
TEST(upload, that_became_an_object_and_no_version_is_finished_again)
{
    struct site site;
    char from[192], to[192], *id;

    site_begin(&site);
    site_register(&site, "core");
    id = create_text(&site, "core", "1.0.0", "abcdef");
    want_patch(&site, id, "0", "abcdef", 6, 204, "");
    site_close(&site);
    (void)snprintf(from, sizeof from, "%s/packs/incoming/%s", site.place, id);
    site_object_path(&site, "abcdef", to);
    CHECK_EQ_INT(rename(from, to), 0);
    site_open(&site);
    want_id(&site, "GET", id, "", 200, "Upload-Offset: 6");
    finish(&site, id, 201, "");
    check_nothing_is_left(&site);
    CHECK_EQ_U64(count_files(&site, "objects"), 1);
    free(id);
    site_end(&site);
}

TEST(upload, object_that_is_not_what_its_name_says_is_not_taken)
{
    struct site site;
    char from[192], to[192], *id;

    site_begin(&site);
    site_register(&site, "core");
    id = create_text(&site, "core", "1.0.0", "abcdef");
    want_patch(&site, id, "0", "abcdef", 6, 204, "");
    site_close(&site);
    (void)snprintf(from, sizeof from, "%s/packs/incoming/%s", site.place, id);
    site_object_path(&site, "abcdef", to);
    CHECK_EQ_INT(unlink(from), 0);
    site_write_file(to, "abcdeF");
    site_open(&site);
    finish(&site, id, 422, "ChecksumMismatch");
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_versions"), 0);
    check_nothing_is_left(&site);
    free(id);
    site_end(&site);
}

TEST(upload, leftovers_of_a_crash_are_removed_at_the_start)
{
    struct site site;
    char path[192], *kept, *lost;

    site_begin(&site);
    site_register(&site, "core");
    kept = create_text(&site, "core", "1.0.0", "abcdef");
    lost = create_text(&site, "core", "2.0.0", "ghijkl");
    site_close(&site);
    (void)snprintf(path, sizeof path, "%s/packs/incoming/%s", site.place, lost);
    CHECK_EQ_INT(unlink(path), 0);
    (void)snprintf(path, sizeof path, "%s/packs/incoming/%032d", site.place, 7);
    site_write_file(path, "nobody's");
    site_open(&site);
    CHECK_EQ_U64(count_files(&site, "incoming"), 1);
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_uploads"), 1);
    want_id(&site, "GET", kept, "", 200, "'offset':0");
    want_id(&site, "GET", lost, "", 404, "UploadNotFound");
    free(kept);
    free(lost);
    site_end(&site);
}

static _Atomic uint64_t ahead_ns;

static uint64_t wall_ns(void *data)
{
    const struct tr_env *real = tr_env_real();

    (void)data;
    return real->wall_ns(real->data) + atomic_load(&ahead_ns);
}

TEST(upload, abandoned_one_goes_after_a_day)
{
    struct tr_env env = *tr_env_real();
    struct upload_job *job = upload_job_create(UPLOAD_SWEEP);
    struct upload_message message = { upload_job_ref(job) };
    struct site site;
    char *old, *young;

    env.wall_ns = wall_ns;
    site_begin(&site);
    site.packs->calls.env = &env;
    site_register(&site, "core");
    old = create_text(&site, "core", "1.0.0", "abcdef");
    young = create_text(&site, "core", "2.0.0", "abcdefg");
    atomic_store(&ahead_ns, TR_SECONDS(UPLOAD_KEPT_S - 60));
    want_patch(&site, young, "0", "abc", 3, 204, "");
    atomic_store(&ahead_ns, TR_SECONDS(UPLOAD_KEPT_S + 60));
    CHECK_EQ_INT(
        tr_ask_wait(site.packs->uploads, &message, sizeof message, NULL, 0, TR_SECONDS(10)), 0);
    upload_job_unref(job);
    /* It is being removed, or gone: a delete comes after it. */
    for (unsigned status = 0; status != 404;) {
        char call[128];
        struct web_answer answer;

        (void)snprintf(call, sizeof call, "admin/uploads/%s", old);
        answer = site_ask(&site, TOKEN, "GET", call, NULL);
        status = answer.status;
        CHECK(status == 200 || status == 404);
        web_answer_free(&answer);
    }
    want_id(&site, "GET", young, "", 200, "'offset':3");
    CHECK_EQ_U64(count_files(&site, "incoming"), 1);
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_uploads"), 1);
    free(old);
    free(young);
    site_end(&site);
}

TEST(upload, abandoned_before_a_restart_goes_at_the_start)
{
    const struct timespec old[2] = { { .tv_sec = 1000000000 }, { .tv_sec = 1000000000 } };
    struct site site;
    char path[192], *id;

    site_begin(&site);
    site_register(&site, "core");
    id = create_text(&site, "core", "1.0.0", "abcdef");
    site_close(&site);
    (void)snprintf(path, sizeof path, "%s/packs/incoming/%s", site.place, id);
    CHECK_EQ_INT(utimensat(AT_FDCWD, path, old, 0), 0);
    site_open(&site);
    check_nothing_is_left(&site);
    free(id);
    site_end(&site);
}

/* ---- two at a time -------------------------------------------------------------------------- */

/* Until the server has so many bytes. */
static void wait_for_offset(const struct site *site, const char *id, const char *wanted)
{
    char call[128];

    (void)snprintf(call, sizeof call, "admin/uploads/%s", id);
    for (bool is_there = false; !is_there;) {
        struct web_answer answer = site_ask(site, TOKEN, "GET", call, NULL);

        CHECK_EQ_U64(answer.status, 200);
        is_there = strstr(answer.text, wanted) != NULL;
        web_answer_free(&answer);
    }
}

TEST(upload, of_two_who_send_one_wins_and_the_other_is_told)
{
    enum { SIZE = UPLOAD_PIECE + 10 };
    struct site site;
    char *bytes = malloc(SIZE), *id;
    struct web_answer answer = { 0 };
    int fd;

    CHECK(bytes != NULL);
    memset(bytes, 'x', SIZE);
    site_begin(&site);
    site_register(&site, "core");
    id = create(&site,
        &(struct announced){ .pack = "core", .version = "1", .bytes = bytes, .size = SIZE }, 201);
    /* The first has sent a piece and is about to send the rest. */
    fd = begin_patch(&site, id, "0", bytes, UPLOAD_PIECE, SIZE);
    wait_for_offset(&site, id, "offset\":262144");
    want_patch(&site, id, "262144", bytes, 10, 409, "UploadBusy");
    want_patch(&site, id, "0", bytes, 10, 409, "Retry-After: 2");
    finish(&site, id, 409, "UploadBusy");
    want_id(&site, "DELETE", id, "", 409, "UploadBusy");
    web_send(fd, bytes, SIZE - UPLOAD_PIECE);
    web_receive(fd, &answer);
    CHECK_MSG(answer.status == 204, "%s", answer.text);
    web_answer_free(&answer);
    close(fd);
    finish(&site, id, 201, "");
    free(id);
    free(bytes);
    site_end(&site);
}

TEST(upload, what_came_before_the_client_went_is_kept)
{
    struct site site;
    char *id;
    int fd;

    site_begin(&site);
    site_register(&site, "core");
    id = create_text(&site, "core", "1.0.0", "abcdef");
    fd = begin_patch(&site, id, "0", "abcd", 4, 6);
    close(fd);
    wait_for_offset(&site, id, "offset\":4");
    want_patch(&site, id, "4", "ef", 2, 204, "");
    finish(&site, id, 201, "");
    free(id);
    site_end(&site);
}

/* ---- encodings ------------------------------------------------------------------------------ */

#define PLAIN "what is compressed, what is compressed, what is compressed, what is compressed"

static size_t gzip(const char *bytes, size_t size, char *out, size_t out_size)
{
    z_stream stream = { 0 };
    size_t made;

    CHECK_EQ_INT(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    stream.next_in = (Bytef *)(uintptr_t)bytes;
    stream.avail_in = (uInt)size;
    stream.next_out = (Bytef *)out;
    stream.avail_out = (uInt)out_size;
    CHECK_EQ_INT(deflate(&stream, Z_FINISH), Z_STREAM_END);
    made = out_size - stream.avail_out;
    (void)deflateEnd(&stream);
    return made;
}

static size_t zstd(const char *bytes, size_t size, char *out, size_t out_size)
{
    size_t made = ZSTD_compress(out, out_size, bytes, size, 3);

    CHECK(!ZSTD_isError(made));
    return made;
}

/* Upload `bytes` as this encoding of core 1.0.0. */
static void want_encoding(const struct site *site, const char *encoding, const char *bytes,
    size_t size, unsigned status, const char *part)
{
    char *id = create(site,
        &(struct announced){ .pack = "core",
            .version = "1.0.0",
            .bytes = bytes,
            .size = size,
            .encoding = encoding },
        201);

    want_patch(site, id, "0", bytes, size, 204, "");
    finish(site, id, status, part);
    check_nothing_is_left(site);
    free(id);
}

TEST(upload, of_an_encoding_must_decompress_to_its_version)
{
    char packed[512], bent[512], other[512];
    struct site site;
    size_t size, other_size;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", PLAIN);
    size = gzip(PLAIN, sizeof PLAIN - 1, packed, sizeof packed);
    other_size = gzip("something else", 14, other, sizeof other);
    want_encoding(&site, "gzip", other, other_size, 422, "VariantMismatch");
    want_encoding(&site, "gzip", PLAIN, sizeof PLAIN - 1, 422, "VariantMismatch");
    want_encoding(&site, "gzip", packed, size - 1, 422, "VariantMismatch"); /* cut off */
    memcpy(bent, packed, size);
    bent[size] = 'x'; /* something behind it */
    want_encoding(&site, "gzip", bent, size + 1, 422, "VariantMismatch");
    want_encoding(&site, "zstd", packed, size, 422, "VariantMismatch"); /* it is the other one */
    CHECK_EQ_U64(count_files(&site, "objects"), 1);
    want_encoding(&site, "gzip", packed, size, 201, "'encoding':'gzip'");
    size = zstd(PLAIN, sizeof PLAIN - 1, packed, sizeof packed);
    want_encoding(&site, "zstd", packed, size, 201, "'encoding':'zstd'");
    CHECK_EQ_U64(count_files(&site, "objects"), 3);
    want(&site, TOKEN, "GET admin/packs/core", NULL, 200, "'encodings':{'gzip':{|'zstd':{");
    want(&site, TOKEN, "POST admin/packs/core/uploads",
        "{'version':'1.0.0','size':3,'sha256':'" SHA "','encoding':'gzip'}", 409, "VariantExists");
    site_end(&site);
}

TEST(variant, bomb_stops_at_the_size_of_its_version)
{
    enum { SIZE = 8 << 20 };
    char *zeros = calloc(1, SIZE), *packed = malloc(SIZE);
    uint8_t digest[32];
    char path[] = "/tmp/troupe-variant.XXXXXX";
    int fd = mkstemp(path);
    size_t size;

    CHECK(zeros != NULL && packed != NULL && fd >= 0);
    CHECK_EQ_INT(unlink(path), 0);
    size = gzip(zeros, SIZE, packed, SIZE);
    CHECK_EQ_INT(write(fd, packed, size), (long long)size);
    crypto_sha256(zeros, 100, digest);
    CHECK_EQ_INT(variant_check(fd, PACK_GZIP, 100, digest), TR_EPROTO);
    crypto_sha256(zeros, SIZE, digest);
    CHECK_EQ_INT(variant_check(fd, PACK_GZIP, SIZE, digest), 0);
    CHECK_EQ_INT(variant_check(fd, PACK_GZIP, SIZE + 1, digest), TR_EPROTO);
    CHECK_EQ_INT(variant_check(fd, PACK_ZSTD, SIZE, digest), TR_EPROTO);
    CHECK_EQ_INT(ftruncate(fd, 0), 0);
    size = zstd(zeros, SIZE, packed, SIZE);
    CHECK_EQ_INT(pwrite(fd, packed, size, 0), (long long)size);
    CHECK_EQ_INT(variant_check(fd, PACK_ZSTD, SIZE, digest), 0);
    CHECK_EQ_INT(variant_check(fd, PACK_ZSTD, 100, digest), TR_EPROTO);
    CHECK_EQ_INT(ftruncate(fd, 0), 0);
    CHECK_EQ_INT(variant_check(fd, PACK_ZSTD, 0, digest), TR_EPROTO);
    close(fd);
    free(zeros);
    free(packed);
}

/* A window that a client of Content-Encoding: zstd need not have. */
TEST(variant, zstd_with_a_large_window_is_refused)
{
    enum { SIZE = 32 << 20 };
    ZSTD_CCtx *context = ZSTD_createCCtx();
    char *bytes = calloc(1, SIZE), *packed = malloc(SIZE);
    char path[] = "/tmp/troupe-variant.XXXXXX";
    int fd = mkstemp(path);
    uint8_t digest[32];
    ZSTD_inBuffer in = { bytes, SIZE, 0 };
    ZSTD_outBuffer out = { packed, SIZE, 0 };

    CHECK(context != NULL && bytes != NULL && packed != NULL && fd >= 0);
    CHECK_EQ_INT(unlink(path), 0);
    CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, 25)));
    while (ZSTD_compressStream2(context, &out, &in, ZSTD_e_end) != 0)
        CHECK(out.pos < out.size);
    CHECK_EQ_INT(write(fd, packed, out.pos), (long long)out.pos);
    crypto_sha256(bytes, SIZE, digest);
    CHECK_EQ_INT(variant_check(fd, PACK_ZSTD, SIZE, digest), TR_EPROTO);
    close(fd);
    free(bytes);
    free(packed);
    (void)ZSTD_freeCCtx(context);
}

/* ---- the file ------------------------------------------------------------------------------- */

TEST(upload_file, every_allocation_may_fail_and_then_it_goes_on)
{
    static const char id[] = "0123456789abcdef0123456789abcdef";
    struct upload_facts facts = { .size = 12 };
    struct objects *objects = NULL;
    struct upload_file file;
    char place[64], why[256];
    int64_t modified_ns;
    int rc = -1;

    web_place_make(place);
    CHECK_EQ_INT(objects_open(place, true, why, sizeof why, &objects), 0);
    crypto_sha256("first second", 12, facts.sha256);
    upload_file_init(&file, objects, id);
    CHECK_EQ_INT(upload_file_create(&file), 0);
    CHECK_EQ_INT(upload_file_write(&file, "first ", 6), 0);
    for (uint64_t n = 1; rc != 0; n++) {
        CHECK(n < 100);
        upload_file_fini(&file); /* as after a restart */
        upload_file_init(&file, objects, id);
        CHECK_EQ_INT(upload_file_look(&file, &modified_ns), 0);
        CHECK_EQ_U64(file.offset, 6);
        base_fault_countdown(n, 1);
        rc = upload_file_write(&file, "second", 6);
        base_fault_countdown(0, 0);
        CHECK(rc == 0 || rc == TR_ENOMEM);
    }
    rc = -1;
    for (uint64_t n = 1; rc != 0; n++) {
        CHECK(n < 100);
        base_fault_countdown(n, 1);
        rc = upload_file_seal(&file, &facts);
        base_fault_countdown(0, 0);
        CHECK(rc == 0 || rc == TR_ENOMEM);
    }
    upload_file_fini(&file);
    objects_close(&objects);
    CHECK_EQ_INT(nftw(place, site_remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}
