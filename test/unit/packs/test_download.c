/* SPDX-License-Identifier: Apache-2.0 */
#include "download_site.h"

enum { SMALL = 4096, MIDDLE = 300000, LARGE = 8 << 20 };

static const size_t sizes[] = { 1, 100, SMALL, 16384, 16385, 65536, 65537, 69632, MIDDLE, LARGE };

static const char *url(int index)
{
    static _Thread_local char text[32];

    snprintf(text, sizeof text, "/d/%d", index);
    return text;
}

/* ---- whole files ---------------------------------------------------------------------------- */

TEST(download, every_size_arrives_as_it_is)
{
    struct download_result result;

    site_open();
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int index = site_add(i, sizes[i]);

        for (int round = 0; round < 3; round++) {
            result = take(url(index), "", site.bytes[index]);
            CHECK_EQ_INT(result.status, 200);
            CHECK_EQ_U64(result.length, sizes[i]);
            CHECK(result.is_complete && result.is_right);
        }
    }
    CHECK_EQ_INT(hashes(), sizeof sizes / sizeof sizes[0]);
    site_close();
}

TEST(download, headers_say_what_it_is)
{
    struct download_result result;
    char expected[128], digest[64];
    int index;

    site_open();
    index = site_add(7, MIDDLE);
    for (int is_versioned = 0; is_versioned < 2; is_versioned++) {
        snprintf(expected, sizeof expected, "/%c/%d", is_versioned ? 'v' : 'd', index);
        result = take(expected, "", site.bytes[index]);
        CHECK_EQ_INT(result.status, 200);
        snprintf(expected, sizeof expected, "\"%s\"", site.versions[index].sha256_hex);
        CHECK_EQ_STR(result_header(&result, "ETag"), expected);
        CHECK_EQ_STR(result_header(&result, "X-Pack-SHA256"), site.versions[index].sha256_hex);
        digest[crypto_base64_encode(site.versions[index].sha256, 32, digest)] = '\0';
        snprintf(expected, sizeof expected, "sha-256=:%s:", digest);
        CHECK_EQ_STR(result_header(&result, "Repr-Digest"), expected);
        CHECK_EQ_STR(result_header(&result, "Accept-Ranges"), "bytes");
        CHECK_EQ_STR(result_header(&result, "Last-Modified"), "Tue, 14 Nov 2023 22:13:20 GMT");
        CHECK_EQ_STR(result_header(&result, "Content-Type"), "application/x-pack");
        CHECK_EQ_STR(result_header(&result, "Vary"), NULL);
        CHECK_EQ_STR(result_header(&result, "Cache-Control"),
            is_versioned ? "public, max-age=31536000, immutable"
                         : "public, max-age=60, must-revalidate");
    }
    site_close();
}

TEST(download, head_has_the_headers_alone)
{
    struct client *client;
    struct answer *answer = calloc(1, sizeof *answer);
    int large, small, empty;
    char text[128];

    site_open();
    large = site_add(1, MIDDLE);
    small = site_add(2, 10);
    empty = site_add(3, 0);
    client = client_open(site.address);
    for (int i = 0; i < 3; i++) {
        int index = i == 0 ? large : i == 1 ? small : empty;

        snprintf(
            text, sizeof text, "HEAD /d/%d HTTP/1.1\r\nHost: t\r\nRange: bytes=0-1\r\n\r\n", index);
        client_ask(client, text, answer);
        CHECK_EQ_INT(answer->status, 200); /* RFC 9110 14.2: Range is for GET */
        CHECK_EQ_INT(strtol(answer_header(answer, "Content-Length"), NULL, 10),
            (long)site.versions[index].size);
        CHECK(answer_header(answer, "ETag") != NULL);
        CHECK(answer_header(answer, "Content-Range") == NULL);
    }
    snprintf(text, sizeof text, "GET /d/%d HTTP/1.1\r\nHost: t\r\n\r\n", empty);
    client_ask(client, text, answer); /* and the connection is where it should be */
    CHECK_EQ_INT(answer->status, 200);
    CHECK_EQ_INT(answer->body_size, 0);
    client_close(client);
    free(answer);
    site_close();
}

/* ---- conditions: RFC 9110 13, RFC 9111 4.3 -------------------------------------------------- */

/* T stands for the tag of the file, O for another, M for its date, E and L for a second earlier
 * and later. */
static void fill_in(char *to, size_t size, const char *from, const struct pack_version *version)
{
    size_t used = 0;
    char date[30];

    for (; *from != '\0'; from++) {
        CHECK(used + 80 < size);
        switch (*from) {
        case '$':
            used += (size_t)snprintf(to + used, size - used, "\"%s\"", version->sha256_hex);
            break;
        case '#':
            used += (size_t)snprintf(to + used, size - used, "\"0%s\"", version->sha256_hex + 1);
            break;
        case '@':
        case '<':
        case '>':
            http_date((uint64_t)version->published_s - (*from == '<') + (*from == '>'), date);
            used += (size_t)snprintf(to + used, size - used, "%s", date);
            break;
        default:
            to[used++] = *from;
            to[used] = '\0';
        }
    }
}

struct condition_row {
    const char *headers;
    int status;
    uint64_t length;   /* of the body; 0: not looked at */
    const char *range; /* Content-Range of 206 */
};

/* In headers: $ is the file's entity tag, # another one, @ its date, < and > a second before and
 * after. The file has 1000 bytes. */
static const struct condition_row conditions[] = {
    { "", 200, 1000, NULL },
    /* 13.1.2 If-None-Match: weak comparison, lists, any */
    { "If-None-Match: $\r\n", 304, 0, NULL },
    { "If-None-Match: W/$\r\n", 304, 0, NULL },
    { "If-None-Match: #\r\n", 200, 1000, NULL },
    { "If-None-Match: #, $\r\n", 304, 0, NULL },
    { "If-None-Match: \"a\",\"b\",W/$,\"c\"\r\n", 304, 0, NULL },
    { "If-None-Match: *\r\n", 304, 0, NULL },
    { "If-None-Match: \"\"\r\n", 200, 1000, NULL },
    { "If-None-Match: garbage\r\n", 200, 1000, NULL },
    /* 13.1.3 If-Modified-Since: ignored beside If-None-Match, and if it is no date */
    { "If-Modified-Since: @\r\n", 304, 0, NULL },
    { "If-Modified-Since: >\r\n", 304, 0, NULL },
    { "If-Modified-Since: <\r\n", 200, 1000, NULL },
    { "If-Modified-Since: yesterday\r\n", 200, 1000, NULL },
    { "If-None-Match: #\r\nIf-Modified-Since: @\r\n", 200, 1000, NULL },
    { "If-None-Match: $\r\nIf-Modified-Since: <\r\n", 304, 0, NULL },
    /* 13.1.1 If-Match: strong comparison */
    { "If-Match: $\r\n", 200, 1000, NULL },
    { "If-Match: *\r\n", 200, 1000, NULL },
    { "If-Match: #\r\n", 412, 0, NULL },
    { "If-Match: W/$\r\n", 412, 0, NULL },
    { "If-Match: #, $\r\n", 200, 1000, NULL },
    /* 13.1.4 If-Unmodified-Since: ignored beside If-Match */
    { "If-Unmodified-Since: @\r\n", 200, 1000, NULL },
    { "If-Unmodified-Since: <\r\n", 412, 0, NULL },
    { "If-Unmodified-Since: soon\r\n", 200, 1000, NULL },
    { "If-Match: $\r\nIf-Unmodified-Since: <\r\n", 200, 1000, NULL },
    /* 13.2.2: their order */
    { "If-Match: #\r\nIf-None-Match: $\r\n", 412, 0, NULL },
    { "If-Match: $\r\nIf-None-Match: $\r\n", 304, 0, NULL },
    { "If-None-Match: $\r\nRange: bytes=0-9\r\n", 304, 0, NULL },
    { "If-Match: #\r\nRange: bytes=0-9\r\n", 412, 0, NULL },
    /* 14.2 Range */
    { "Range: bytes=0-9\r\n", 206, 10, "bytes 0-9/1000" },
    { "Range: bytes=990-\r\n", 206, 10, "bytes 990-999/1000" },
    { "Range: bytes=-10\r\n", 206, 10, "bytes 990-999/1000" },
    { "Range: bytes=-5000\r\n", 206, 1000, "bytes 0-999/1000" },
    { "Range: bytes=0-\r\n", 206, 1000, "bytes 0-999/1000" },
    { "Range: bytes=0-5000\r\n", 206, 1000, "bytes 0-999/1000" },
    { "Range: bytes=999-999\r\n", 206, 1, "bytes 999-999/1000" },
    { "Range: BYTES=0-9\r\n", 206, 10, "bytes 0-9/1000" },
    { "Range: bytes= 0-9\r\n", 206, 10, "bytes 0-9/1000" },
    { "Range: bytes=1000-\r\n", 416, 0, NULL },
    { "Range: bytes=5000-6000\r\n", 416, 0, NULL },
    { "Range: bytes=-0\r\n", 416, 0, NULL },
    { "Range: bytes=2000-,3000-\r\n", 416, 0, NULL },
    { "Range: bytes=9-0\r\n", 200, 1000, NULL },  /* invalid: ignored */
    { "Range: bytes=a-b\r\n", 200, 1000, NULL },  /* the same */
    { "Range: bytes=\r\n", 200, 1000, NULL },     /* the same */
    { "Range: items=0-9\r\n", 200, 1000, NULL },  /* a unit that is not known: ignored */
    { "Range: chapters=1\r\n", 200, 1000, NULL }, /* the same */
    { "Range: bytes=0-9,2000-\r\n", 206, 10, "bytes 0-9/1000" }, /* one of them can be had */
    { "Range: bytes=0-9,5-20\r\n", 200, 1000, NULL },            /* they overlap: served whole */
    { "Range: bytes=0-1,2-3,4-5,6-7,8-9,10-11,12-13,14-15,16-17\r\n", 200, 1000,
        NULL }, /* too many */
    /* 13.1.5 If-Range: strong comparison; a date is never strong enough */
    { "Range: bytes=0-9\r\nIf-Range: $\r\n", 206, 10, "bytes 0-9/1000" },
    { "Range: bytes=0-9\r\nIf-Range: #\r\n", 200, 1000, NULL },
    { "Range: bytes=0-9\r\nIf-Range: W/$\r\n", 200, 1000, NULL },
    { "Range: bytes=0-9\r\nIf-Range: @\r\n", 200, 1000, NULL },
    { "Range: bytes=0-9\r\nIf-Range: <\r\n", 200, 1000, NULL },
    { "Range: bytes=0-9\r\nIf-Range: >\r\n", 200, 1000, NULL },
    { "Range: bytes=0-9\r\nIf-Range: later\r\n", 200, 1000, NULL },
    { "Range: bytes=5000-\r\nIf-Range: #\r\n", 200, 1000, NULL }, /* not even looked at */
    { "If-Range: $\r\n", 200, 1000, NULL },
};

/* Range is for GET alone (14.2): a HEAD is answered as if it were not there. */
static int status_of(const struct condition_row *row, bool is_head)
{
    return is_head && (row->status == 206 || row->status == 416) ? 200 : row->status;
}

static void check_condition(const struct answer *answer, const struct condition_row *row,
    const struct pack_version *version, bool is_head)
{
    int status = status_of(row, is_head);
    uint64_t length = status == 200 && is_head ? 1000 : row->length;
    char date[30], tag[70];

    CHECK_MSG(answer->status == status, "%d, not %d, for %s%s", answer->status, status,
        is_head ? "HEAD " : "", row->headers);
    if (length != 0) {
        CHECK_EQ_INT(strtol(answer_header(answer, "Content-Length"), NULL, 10), (long)length);
        CHECK_MSG(answer->body_size == (is_head ? 0 : length), "%zu bytes for %s",
            answer->body_size, row->headers);
    }
    CHECK_EQ_STR(answer_header(answer, "Content-Range"), status == 206   ? row->range
                                                         : status == 416 ? "bytes */1000"
                                                                         : NULL);
    if (status == 412 || status == 416)
        return;
    /* The same of 200, 206 and 304: 15.4.5. */
    http_date((uint64_t)version->published_s, date);
    snprintf(tag, sizeof tag, "\"%s\"", version->sha256_hex);
    CHECK_EQ_STR(answer_header(answer, "ETag"), tag);
    CHECK_EQ_STR(answer_header(answer, "Last-Modified"), date);
    CHECK_EQ_STR(answer_header(answer, "Cache-Control"), "public, max-age=60, must-revalidate");
    CHECK_EQ_STR(
        answer_header(answer, "Vary"), version->variants[1].there ? "Accept-Encoding" : NULL);
    CHECK(answer_header(answer, "Date") != NULL);
    if (status == 304)
        CHECK(answer->body_size == 0 && answer_header(answer, "Content-Type") == NULL);
}

static void check_conditions(int index)
{
    struct client *client = client_open(site.address);
    struct answer *answer = calloc(1, sizeof *answer);
    char headers[1024], text[1200];

    for (size_t i = 0; i < 2 * sizeof conditions / sizeof conditions[0]; i++) {
        const struct condition_row *row = &conditions[i / 2];
        bool is_head = i % 2 == 1;

        headers[0] = '\0';
        fill_in(headers, sizeof headers, row->headers, &site.versions[index]);
        snprintf(text, sizeof text, "%s /d/%d HTTP/1.1\r\nHost: t\r\n%s\r\n",
            is_head ? "HEAD" : "GET", index, headers);
        client_ask(client, text, answer);
        check_condition(answer, row, &site.versions[index], is_head);
    }
    client_close(client);
    free(answer);
}

static void add_variant(
    int index, struct pack_variant *variant, uint64_t seed, size_t size, unsigned char **ret_bytes);

TEST(download, conditions_and_ranges_are_those_of_the_standard)
{
    unsigned char *gzip;
    int index;

    site_open();
    index = site_add(11, 1000);
    check_conditions(index);
    add_variant(
        index, &site.versions[index].variants[1], 12, 500, &gzip); /* not for who did not ask */
    check_conditions(index);
    free(gzip);
    site_close();
}

/* ---- ranges --------------------------------------------------------------------------------- */

TEST(download, ranges_of_all_sizes_are_the_right_bytes)
{
    static const struct {
        uint64_t first, size;
    } ranges[] = { { 0, 1 }, { 0, 4096 }, { 1, 4095 }, { 100, 65536 }, { 299999, 1 },
        { 290000, 10000 }, { 12345, 200000 }, { 0, 300000 } };
    struct download_result result;
    int index;

    site_open();
    index = site_add(3, MIDDLE);
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        char header[80], expected[80];

        snprintf(header, sizeof header, "Range: bytes=%llu-%llu\r\n",
            (unsigned long long)ranges[i].first,
            (unsigned long long)(ranges[i].first + ranges[i].size - 1));
        snprintf(expected, sizeof expected, "bytes %llu-%llu/%d",
            (unsigned long long)ranges[i].first,
            (unsigned long long)(ranges[i].first + ranges[i].size - 1), MIDDLE);
        result = take(url(index), header, site.bytes[index] + ranges[i].first);
        CHECK_EQ_INT(result.status, 206);
        CHECK_EQ_U64(result.length, ranges[i].size);
        CHECK_EQ_STR(result_header(&result, "Content-Range"), expected);
        CHECK(result.is_complete && result.is_right);
    }
    site_close();
}

/* RFC 9110 14.6, byte for byte. */
static void check_multipart(
    int index, const char *header, unsigned count, const struct http_range *ranges)
{
    struct client *client = client_open(site.address);
    struct answer *answer = calloc(1, sizeof *answer);
    const char *type, *at;
    char text[512], boundary[1200], head[1500];

    snprintf(text, sizeof text, "GET /d/%d HTTP/1.1\r\nHost: t\r\nRange: bytes=%s\r\n\r\n", index,
        header);
    client_ask(client, text, answer);
    CHECK_EQ_INT(answer->status, 206);
    CHECK(answer_header(answer, "Content-Range") == NULL);
    type = answer_header(answer, "Content-Type");
    CHECK(strncmp(type, "multipart/byteranges; boundary=", 31) == 0);
    snprintf(boundary, sizeof boundary, "%s", type + 31);
    at = answer->body;
    for (unsigned i = 0; i < count; i++) {
        int size = snprintf(head, sizeof head,
            "%s--%s\r\nContent-Type: application/x-pack\r\nContent-Range: bytes %llu-%llu/%llu"
            "\r\n\r\n",
            i == 0 ? "" : "\r\n", boundary, (unsigned long long)ranges[i].first,
            (unsigned long long)(ranges[i].first + ranges[i].size - 1),
            (unsigned long long)site.versions[index].size);

        CHECK_MSG(memcmp(at, head, (size_t)size) == 0, "part %u begins with %.120s", i, at);
        at += size;
        CHECK(memcmp(at, site.bytes[index] + ranges[i].first, ranges[i].size) == 0);
        at += ranges[i].size;
    }
    snprintf(head, sizeof head, "\r\n--%s--\r\n", boundary);
    CHECK_EQ_STR(at, head);
    CHECK_EQ_U64(answer->body_size, (uint64_t)(at - answer->body) + strlen(head));
    client_close(client);
    free(answer);
}

TEST(download, several_ranges_are_parts_of_one_answer)
{
    static const struct http_range two[] = { { 0, 10 }, { 100, 50 } };
    static const struct http_range eight[] = { { 0, 1 }, { 2, 1 }, { 4, 1 }, { 6, 1 }, { 8, 1 },
        { 10, 1 }, { 12, 1 }, { 995, 5 } };
    static const struct http_range far[] = { { 1000, 60000 }, { 0, 10 }, { 200000, 80000 },
        { 299999, 1 } };
    int small, large;

    site_open();
    small = site_add(5, 1000);
    large = site_add(6, MIDDLE);
    for (int round = 0; round < 2; round++) {
        check_multipart(small, "0-9,100-149", 2, two);
        check_multipart(small, "0-0,2-2,4-4,6-6,8-8,10-10,12-12,-5", 8, eight);
        check_multipart(large, "0-9,100-149", 2, two);
        check_multipart(large, "1000-60999,0-9,200000-279999,299999-", 4, far);
    }
    site_close();
}

/* ---- defect 2: resume across a publish ------------------------------------------------------ */

TEST(download, resume_across_a_publish_never_mixes_two_files)
{
    struct download_result result;
    char header[1200], versioned[32];
    int old, new;

    site_open();
    old = site_add(1, MIDDLE);
    new = site_add(2, MIDDLE);
    atomic_store(&site.latest, old);
    result = take("/d/latest", "Range: bytes=0-99999\r\n", site.bytes[old]);
    CHECK_EQ_INT(result.status, 206);
    CHECK(result.is_right);
    snprintf(header, sizeof header, "Range: bytes=100000-\r\nIf-Range: %s\r\n",
        result_header(&result, "ETag"));
    result = take("/d/latest", header, site.bytes[old] + 100000); /* nothing was published yet */
    CHECK_EQ_INT(result.status, 206);
    CHECK(result.is_complete && result.is_right);

    atomic_store(&site.latest, new);
    result = take("/d/latest", header, site.bytes[new]);
    CHECK_EQ_INT(result.status, 200); /* from the beginning, and it says so */
    CHECK(result.is_complete && result.is_right);
    snprintf(versioned, sizeof versioned, "/v/%d", old);
    result = take(versioned, header, site.bytes[old] + 100000); /* the version's own URL goes on */
    CHECK_EQ_INT(result.status, 206);
    CHECK(result.is_complete && result.is_right);
    site_close();
}

/* A date is no name: neither of two versions of one second, nor of the codings of one version. */
TEST(download, resume_by_date_never_mixes_two_files_of_one_second)
{
    struct download_result result;
    char header[1200];
    int old, new;

    site_open();
    old = site_add(1, MIDDLE);
    new = site_add(2, MIDDLE);
    site.versions[new].published_s = site.versions[old].published_s;
    atomic_store(&site.latest, old);
    result = take("/d/latest", "Range: bytes=0-99999\r\n", site.bytes[old]);
    CHECK_EQ_INT(result.status, 206);
    snprintf(header, sizeof header, "Range: bytes=100000-\r\nIf-Range: %s\r\n",
        result_header(&result, "Last-Modified"));
    atomic_store(&site.latest, new);
    result = take("/d/latest", header, site.bytes[new]);
    CHECK_EQ_INT(result.status, 200);
    CHECK_EQ_U64(result.length, MIDDLE);
    CHECK(result.is_complete && result.is_right);
    site_close();
}

/* ---- codings -------------------------------------------------------------------------------- */

static void add_variant(
    int index, struct pack_variant *variant, uint64_t seed, size_t size, unsigned char **ret_bytes)
{
    *ret_bytes = make_bytes(seed, size);
    variant->there = true;
    variant->size = size;
    digest_of(*ret_bytes, size, variant->sha256, variant->sha256_hex);
    put_object(&site.files, variant->sha256_hex, *ret_bytes, size);
    (void)index;
}

TEST(download, coding_is_chosen_by_the_client_and_has_its_own_tag)
{
    static const struct {
        const char *accept;
        int coding; /* 0 none, 1 zstd, 2 gzip */
    } rows[] = { { "", 0 }, { "Accept-Encoding: zstd, gzip\r\n", 1 },
        { "Accept-Encoding: gzip\r\n", 2 }, { "Accept-Encoding: br\r\n", 0 },
        { "Accept-Encoding: zstd;q=0, gzip\r\n", 2 }, { "Accept-Encoding: *\r\n", 1 },
        { "Accept-Encoding: identity\r\n", 0 }, { "Accept-Encoding: gzip;q=0\r\n", 0 } };
    unsigned char *zstd, *gzip;
    struct download_result result;
    char header[300], expected[80];
    int index;

    site_open();
    index = site_add(9, MIDDLE);
    add_variant(index, &site.versions[index].variants[0], 100, 100000, &zstd);
    add_variant(index, &site.versions[index].variants[1], 101, 120, &gzip);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const unsigned char *right = rows[i].coding == 1   ? zstd
                                     : rows[i].coding == 2 ? gzip
                                                           : site.bytes[index];
        const char *hex = rows[i].coding == 1   ? site.versions[index].variants[0].sha256_hex
                          : rows[i].coding == 2 ? site.versions[index].variants[1].sha256_hex
                                                : site.versions[index].sha256_hex;

        result = take(url(index), rows[i].accept, right);
        CHECK_EQ_INT(result.status, 200);
        CHECK_MSG(result.is_complete && result.is_right, "%s", rows[i].accept);
        snprintf(expected, sizeof expected, "\"%s\"", hex);
        CHECK_EQ_STR(result_header(&result, "ETag"), expected);
        CHECK_EQ_STR(result_header(&result, "Vary"), "Accept-Encoding");
        CHECK_EQ_STR(result_header(&result, "Content-Encoding"), rows[i].coding == 1   ? "zstd"
                                                                 : rows[i].coding == 2 ? "gzip"
                                                                                       : NULL);
        CHECK_EQ_STR(result_header(&result, "X-Pack-SHA256"), site.versions[index].sha256_hex);
        /* The tag of one coding does not fit another; a range is one of the coded bytes. */
        snprintf(header, sizeof header, "%sIf-None-Match: %s\r\n", rows[i].accept, expected);
        CHECK_EQ_INT(take(url(index), header, NULL).status, 304);
        if (rows[i].coding != 0) {
            snprintf(header, sizeof header, "If-None-Match: %s\r\n", expected);
            CHECK_EQ_INT(take(url(index), header, NULL).status, 200);
            snprintf(header, sizeof header, "Range: bytes=10-19\r\nIf-Range: %s\r\n%s", expected,
                rows[i].accept);
            result = take(url(index), header, right + 10);
            CHECK_EQ_INT(result.status, 206);
            CHECK(result.is_right);
        }
    }
    free(zstd);
    free(gzip);
    site_close();
}

TEST(download, resume_by_date_never_mixes_codings)
{
    struct download_result result;
    unsigned char *gzip;
    char header[1200];
    int index;

    site_open();
    index = site_add(9, MIDDLE);
    result =
        take(url(index), "Accept-Encoding: gzip\r\nRange: bytes=0-99999\r\n", site.bytes[index]);
    CHECK_EQ_INT(result.status, 206);
    CHECK_EQ_STR(result_header(&result, "Content-Encoding"), NULL);
    snprintf(header, sizeof header,
        "Accept-Encoding: gzip\r\nRange: bytes=100000-\r\nIf-Range: %s\r\n",
        result_header(&result, "Last-Modified"));
    add_variant(index, &site.versions[index].variants[1], 101, 200000, &gzip); /* meanwhile */
    result = take(url(index), header, gzip);
    CHECK_EQ_INT(result.status, 200);
    CHECK_EQ_STR(result_header(&result, "Content-Encoding"), "gzip");
    CHECK_EQ_U64(result.length, 200000);
    CHECK(result.is_complete && result.is_right);
    free(gzip);
    site_close();
}

/* ---- files that are not what they should be ------------------------------------------------- */

static void check_refused(int index, int status, const char *label)
{
    struct client *client = client_open(site.address);
    struct answer *answer = calloc(1, sizeof *answer);
    char text[128];

    snprintf(text, sizeof text, "GET /d/%d HTTP/1.1\r\nHost: t\r\n\r\n", index);
    client_ask(client, text, answer);
    CHECK_EQ_INT(answer->status, status);
    CHECK_MSG(strstr(answer->body, label) != NULL, "%s", answer->body);
    CHECK(answer_header(answer, "ETag") == NULL);
    CHECK(answer_header(answer, "Content-Encoding") == NULL);
    client_close(client);
    free(answer);
}

TEST(download, file_that_is_not_what_was_published_is_refused_with_its_reason)
{
    char path[256];
    int index;

    site_open();
    for (int is_large = 0; is_large < 2; is_large++) {
        size_t size = is_large ? MIDDLE : 5000;
        unsigned char *other = make_bytes(999, size);

        index = site_add(20 + (uint64_t)is_large, size);
        site_path(index, path);
        put_file(path, other, size); /* other bytes, as many */
        check_refused(index, 500, "PackDamaged");
        check_refused(index, 500, "PackDamaged");
        put_file(path, site.bytes[index], size - 1); /* cut short */
        check_refused(index, 500, "PackDamaged");
        put_file(path, other, 0);
        check_refused(index, 500, "PackDamaged");
        CHECK_EQ_INT(unlink(path), 0);
        check_refused(index, 500, "PackMissing");
        CHECK_EQ_INT(symlink("/etc/passwd", path), 0);
        check_refused(index, 500, "PackUnreadable");
        CHECK_EQ_INT(unlink(path), 0);
        CHECK_EQ_INT(mkdir(path, 0755), 0);
        check_refused(index, 500, "PackUnreadable");
        CHECK_EQ_INT(rmdir(path), 0);
        if (geteuid() != 0) { /* root reads it all the same */
            put_file(path, site.bytes[index], size);
            CHECK_EQ_INT(chmod(path, 0), 0);
            check_refused(index, 500, "PackUnreadable");
        }
        put_file(path, site.bytes[index], size); /* repaired: served again, without a restart */
        CHECK(take(url(index), "", site.bytes[index]).is_right);
        free(other);
    }
    site_close();
}

/* Defect 11. */
TEST(download, file_that_changes_after_it_was_verified_is_not_served_as_verified)
{
    unsigned char *other = make_bytes(77, LARGE);
    char path[256];

    site_open();
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int index = site_add(200 + i, sizes[i]), fd;
        struct download_result result = take(url(index), "", site.bytes[index]);

        CHECK(result.is_complete && result.is_right);
        site_path(index, path);
        CHECK_EQ_INT(chmod(path, 0640), 0);
        fd = open(path, O_WRONLY | O_CLOEXEC);
        CHECK(fd >= 0);
        CHECK_EQ_INT(pwrite(fd, other, 1, (off_t)(sizes[i] / 2)), 1);
        close(fd);
        result = take(url(index), "", NULL);
        if (other[0] != site.bytes[index][sizes[i] / 2])
            CHECK_EQ_INT(result.status, 500);
        put_file(path, site.bytes[index], sizes[i]);
        result = take(url(index), "", site.bytes[index]);
        CHECK_EQ_INT(result.status, 200);
        CHECK(result.is_complete && result.is_right);
    }
    free(other);
    site_close();
}

/* ---- defect 1 ------------------------------------------------------------------------------- */

TEST_LONG(download, many_cold_requests_cost_one_hash_and_all_are_answered, 60)
{
    enum { CLIENTS = 300 };
    struct taker *takers[CLIENTS];
    struct download_result result;
    int index, right = 0;

    site_open_with(&(struct packs_settings){ .hashes_max = 2 },
        &(struct http_limits){ .in_flight_max = 4096 });
    index = site_add(1, 4 << 20);
    for (int i = 0; i < CLIENTS; i++) {
        takers[i] = taker_open(0);
        taker_ask(takers[i], url(index), "Range: bytes=1000-1999\r\n");
    }
    for (int i = 0; i < CLIENTS; i++) {
        taker_head(takers[i], &result);
        CHECK_EQ_INT(result.status, 206);
        taker_body(takers[i], &result, site.bytes[index] + 1000);
        right += result.is_complete && result.is_right;
        taker_close(takers[i]);
    }
    CHECK_EQ_INT(right, CLIENTS);
    CHECK_EQ_INT(hashes(), 1);
    site_close();
}
