/* SPDX-License-Identifier: Apache-2.0 */
/* download.c: from a version to bytes on the wire.
 *
 *   choose the coding -> conditions (304, 412) -> ranges (416) -> verified? -> leases -> send
 *
 * The entity tag is the SHA-256 of the sent bytes, so it is strong and differs by coding and version.
 * A client that resumes with If-Range after another version was published starts again instead of
 * mixing two files. A small file is sent from memory, as it was hashed. A large file is sent by
 * sendfile and checked on the way (http_respond_parts): if it has changed, the server cuts the answer
 * off before it is complete. */
#include "services/packs/download.h"

#include <stdio.h>
#include <string.h>

#include "auth/rate_limit.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/encoding.h"
#include "services/packs/download_rate.h"
#include "services/packs/integrity.h"
#include "services/packs/packs_request.h"
#include "services/packs/transfer.h"
#include "support/metric.h"

enum {
    ASKS_MAX = 3, /* for a file that is verified and evicted again before it is sent */
    BOUNDARY_SIZE = 32,
    COPY_MAX = 16 << 10, /* a range of a large file up to this is copied, not sent by sendfile */
    PART_HEAD_MAX = 320 + PACK_TYPE_MAX,
};

#define SENT_HELP "Downloads by what was sent."
static struct metric metrics[] = {
    METRIC(COUNTER, "troupe_pack_downloads_total", "kind=\"full\"", SENT_HELP),
    METRIC(COUNTER, "troupe_pack_downloads_total", "kind=\"range\"", SENT_HELP),
    METRIC(COUNTER, "troupe_pack_downloads_total", "kind=\"ranges\"", SENT_HELP),
    METRIC(COUNTER, "troupe_pack_downloads_total", "kind=\"head\"", SENT_HELP),
    METRIC(COUNTER, "troupe_pack_downloads_total", "kind=\"not_modified\"", SENT_HELP),
    METRIC(COUNTER, "troupe_pack_sent_bytes_total", NULL, "Bytes of packs sent."),
    METRIC(COUNTER, "troupe_pack_refused_total", NULL,
        "Downloads refused because the file is damaged, missing or not verified."),
};
enum { FULL, RANGE, RANGES, HEAD, NOT_MODIFIED, SENT_BYTES, REFUSED };

/* One download until it is sent. It lives on the stack, or in the request if it has to wait. */
struct download {
    struct packs *packs;
    const struct pack_version *version;
    struct download_options options;
    enum pack_coding coding;
    struct hash_file file;
    char etag[66]; /* with quotes, not terminated */
    struct http_range ranges[HTTP_RANGES_MAX];
    int range_count; /* 0: all of it */
    int asks;
};
_Static_assert(sizeof((struct download *)0)->etag == OBJECT_NAME_CHARS + 2, "a digest in quotes");

/* ---- choosing ------------------------------------------------------------------------------- */

static void choose_coding(const struct http_request *request, struct download *download)
{
    const struct pack_version *version = download->version;
    const uint8_t *sha256 = version->sha256;
    const char *sha256_hex = version->sha256_hex;

    download->file.size = version->size;
    for (int i = 0; pack_codings[i] != NULL && download->coding == PACK_IDENTITY; i++)
        if (version->variants[i].there && http_accepts(request, pack_codings[i])) {
            download->coding = (enum pack_coding)(i + 1);
            download->file.size = version->variants[i].size;
            sha256 = version->variants[i].sha256;
            sha256_hex = version->variants[i].sha256_hex;
        }
    download->file.key = integrity_key(version->id, download->coding);
    memcpy(download->file.sha256, sha256, sizeof download->file.sha256);
    download->etag[0] = download->etag[65] = '"';
    memcpy(download->etag + 1, sha256_hex, 64);
}

static struct span etag_of(const struct download *download)
{
    return (struct span){ download->etag, sizeof download->etag };
}

/* ---- headers -------------------------------------------------------------------------------- */

/* Add the headers of 200, 206 and 304 (RFC 9110 15.4.5). */
static void add_common(struct http_request *request, const struct download *download)
{
    const struct pack_version *version = download->version;
    char date[30];

    http_add_header(request, "ETag", etag_of(download));
    if (download->options.modified_s != 0) {
        http_date(download->options.modified_s, date);
        http_add_header(request, "Last-Modified", (struct span){ date, 29 });
    }
    http_add_header(request, "Cache-Control",
        download->options.is_versioned ? SPAN("public, max-age=31536000, immutable")
                                       : SPAN("public, max-age=60, must-revalidate"));
    if (version->variants[0].there || version->variants[1].there)
        http_add_header(request, "Vary", SPAN("Accept-Encoding"));
}

/* Add the headers of an answer with bytes. */
static void add_content(struct http_request *request, const struct download *download)
{
    char digest[64] = "sha-256=:";
    size_t size = 9;

    size += crypto_base64_encode(download->file.sha256, 32, digest + size);
    digest[size++] = ':';
    http_add_header(request, "Accept-Ranges", SPAN("bytes"));
    http_add_header(request, "Repr-Digest", (struct span){ digest, size });
    http_add_header(request, "X-Pack-SHA256", (struct span){ download->version->sha256_hex, 64 });
    if (download->coding != PACK_IDENTITY)
        http_add_header(request, "Content-Encoding", span_of(pack_codings[download->coding - 1]));
}

static void add_content_range(
    struct http_request *request, const struct http_range *range, uint64_t size)
{
    char text[80];
    int length =
        snprintf(text, sizeof text, "bytes %llu-%llu/%llu", (unsigned long long)range->first,
            (unsigned long long)(range->first + range->size - 1), (unsigned long long)size);

    http_add_header(request, "Content-Range", (struct span){ text, (size_t)length });
}

static void add_headers(struct http_request *request, const struct download *download)
{
    add_common(request, download);
    add_content(request, download);
    if (download->range_count == 1)
        add_content_range(request, &download->ranges[0], download->file.size);
}

/* Bad verdicts. Any other means: retry (also one that was verified and evicted ASKS_MAX times). */
static const struct {
    unsigned status;
    const char *label, *text;
} bad_verdicts[] = {
    [PACK_DAMAGED] = { 500, "PackDamaged",
        "The stored file differs from the published one and is not sent; the operator has to "
        "repair it." },
    [PACK_MISSING] = { 500, "PackMissing",
        "The stored file of this version is missing; the operator has to restore it." },
    [PACK_UNREADABLE] = { 500, "PackUnreadable",
        "The stored file of this version cannot be read; the operator has to repair it." },
};
_Static_assert(sizeof bad_verdicts / sizeof bad_verdicts[0] == PACK_UNREADABLE + 1, "all bad ones");

static void refuse_verdict(struct http_request *request, enum pack_verdict verdict)
{
    metric_add(&metrics[REFUSED], 1);
    if (verdict >= PACK_DAMAGED && verdict <= PACK_UNREADABLE) {
        http_respond_error(request, bad_verdicts[verdict].status, bad_verdicts[verdict].label,
            bad_verdicts[verdict].text);
        return;
    }
    http_add_header(request, "Retry-After", SPAN("1"));
    http_respond_error(
        request, 503, "VerificationBusy", "The file could not be verified now; retry.");
}

/* ---- sending -------------------------------------------------------------------------------- */

static void end_transfer(void *transfer, uint64_t sent)
{
    metric_add(&metrics[SENT_BYTES], (int64_t)sent);
    transfer_stop(transfer, sent);
}

static void refuse_transfer(struct http_request *request, enum transfer_refusal refusal)
{
    http_add_header(request, "Retry-After", SPAN("5"));
    if (refusal == TRANSFER_USER || refusal == TRANSFER_ADDRESS)
        http_respond_error(request, 429, "TooManyDownloads",
            refusal == TRANSFER_USER
                ? "You have as many downloads under way as allowed; wait until one ends."
                : "This address has as many downloads under way as allowed; wait until one ends.");
    else
        http_respond_error(
            request, 503, "Overloaded", "The server is too busy now; wait, then retry.");
}

static uint64_t bytes_of(const struct download *download)
{
    uint64_t bytes = 0;

    if (download->range_count == 0)
        return download->file.size;
    for (int i = 0; i < download->range_count; i++)
        bytes += download->ranges[i].size;
    return bytes;
}

/* Take the leases for bytes that take a while to send. Returns NULL after answering. */
static struct transfer *start_transfer(
    struct http_request *request, const struct download *download, struct pinned_file *pinned)
{
    struct tr_context *ctx = http_context(request);
    unsigned char address[17];
    struct transfer_facts facts = { .pack = span_of(download->version->pack_name),
        .version = span_of(download->version->version),
        .user = download->options.user,
        .address = http_peer(request),
        .size = bytes_of(download),
        .file = pinned,
        .connection = tr_self(ctx),
        .now_ns = tr_now_ns(ctx) };
    struct transfer *transfer = NULL;
    enum transfer_refusal refusal;

    facts.address_key =
        (struct span){ (const char *)address, rate_limit_address_key(facts.address, address) };
    refusal = transfer_start(download->packs->transfers, &facts, &transfer);
    if (refusal != TRANSFER_OK)
        refuse_transfer(request, refusal);
    return transfer;
}

/* The parts of a multipart/byteranges answer (RFC 9110 14.6). */
struct multipart {
    char type[40 + BOUNDARY_SIZE];
    struct http_part parts[HTTP_RANGES_MAX];
    char heads[HTTP_RANGES_MAX][PART_HEAD_MAX];
    char end[BOUNDARY_SIZE + 16];
};

static void multipart_init(
    struct multipart *multipart, struct tr_context *ctx, const struct download *download)
{
    char boundary[BOUNDARY_SIZE + 1];

    tr_assert(download->range_count > 1 && download->range_count <= HTTP_RANGES_MAX);
    /* Random, so that no file can contain it on purpose. */
    (void)snprintf(boundary, sizeof boundary, "%016llx%016llx", (unsigned long long)tr_random(ctx),
        (unsigned long long)tr_random(ctx));
    (void)snprintf(
        multipart->type, sizeof multipart->type, "multipart/byteranges; boundary=%s", boundary);
    for (int i = 0; i < download->range_count; i++) {
        const struct http_range *range = &download->ranges[i];
        int size = snprintf(multipart->heads[i], sizeof multipart->heads[i],
            "%s--%s\r\nContent-Type: %s\r\nContent-Range: bytes %llu-%llu/%llu\r\n\r\n",
            i == 0 ? "" : "\r\n", boundary, download->version->type,
            (unsigned long long)range->first, (unsigned long long)(range->first + range->size - 1),
            (unsigned long long)download->file.size);

        tr_assert((size_t)size < sizeof multipart->heads[i]);
        multipart->parts[i] = (struct http_part){ .before = { multipart->heads[i], (size_t)size },
            .offset = range->first,
            .size = range->size };
    }
    (void)snprintf(multipart->end, sizeof multipart->end, "\r\n--%s--\r\n", boundary);
}

/* Append the bytes of one range, from memory or from the file. Returns false if it is too short. */
static bool append_range(
    struct buffer *text, const struct pinned_file *pinned, const struct http_range *range)
{
    char *room;
    size_t got;

    tr_assert(range->first < pinned->file.size);
    tr_assert(range->size <= pinned->file.size - range->first);
    if (pinned->bytes != NULL) {
        buffer_append(text, http_frame_at(pinned->bytes) + range->first, (size_t)range->size);
        return true;
    }
    room = buffer_reserve(text, (size_t)range->size);
    if (room == NULL)
        return true; /* text->failed is set */
    if (pinned->source->read(pinned->fd, range->first, room, (size_t)range->size, &got) < 0 ||
        got != range->size)
        return false;
    buffer_grew(text, got);
    return true;
}

/* Build a small answer in memory. Returns false if the file has changed; *ret_frame is NULL when out
 * of memory. The bytes are those that were hashed: the kept ones, or a copy of a file whose identity
 * is unchanged after the copy. */
static bool small_answer(const struct download *download, const struct pinned_file *pinned,
    const struct multipart *multipart, struct http_frame **ret_frame)
{
    struct buffer text = { 0 };
    bool is_good = true;

    *ret_frame = NULL;
    tr_assert(download->range_count > 0 || pinned->bytes != NULL);
    if (download->range_count == 0) {
        *ret_frame = http_frame_ref(pinned->bytes);
        return true;
    }
    for (int i = 0; i < download->range_count && is_good; i++) {
        if (multipart != NULL)
            buffer_span(&text, multipart->parts[i].before);
        is_good = append_range(&text, pinned, &download->ranges[i]);
    }
    if (multipart != NULL)
        buffer_text(&text, multipart->end);
    if (is_good && pinned->bytes == NULL)
        is_good = pinned_is_same(pinned);
    if (is_good && text.failed == 0)
        *ret_frame = http_frame_create(text.bytes, text.size);
    buffer_free(&text);
    return is_good;
}

/* Without a copy where the file is kept in memory; else a copy that is soon gone. */
static bool is_small(const struct download *download, const struct pinned_file *pinned)
{
    return pinned->bytes != NULL || (download->range_count > 0 && bytes_of(download) <= COPY_MAX);
}

static void respond_large(struct http_request *request, const struct download *download,
    struct transfer *transfer, int fd, const struct multipart *multipart, const char *type)
{
    struct http_part whole = { .size = download->file.size };
    struct http_sending answer = { .fd = fd,
        .parts = &whole,
        .part_count = 1,
        .rate_max = download->packs->settings.rate_max,
        .check = transfer_progress,
        .done = end_transfer,
        .data = transfer };

    if (multipart != NULL) {
        answer.parts = multipart->parts;
        answer.part_count = (uint32_t)download->range_count;
        answer.after = span_of(multipart->end);
    } else if (download->range_count == 1) {
        whole.offset = download->ranges[0].first;
        whole.size = download->ranges[0].size;
    }
    http_respond_parts(request, download->range_count == 0 ? 200 : 206, type, &answer);
}

static void respond_head(struct http_request *request, const struct download *download)
{
    struct http_part whole = { .size = download->file.size };
    /* only the length is used */
    struct http_sending answer = { .fd = -1, .parts = &whole, .part_count = 1 };

    add_headers(request, download);
    if (download->file.size == 0)
        http_respond(request, 200, download->version->type, SPAN(""));
    else
        http_respond_parts(request, 200, download->version->type, &answer);
}

/* Refuse before the headers are added, because they describe the file. */
static void respond_bytes(struct http_request *request, const struct download *download,
    struct pinned_file *pinned, const struct multipart *multipart)
{
    const char *type = multipart != NULL ? multipart->type : download->version->type;
    struct transfer *transfer = NULL;
    struct http_frame *frame = NULL;

    if (is_small(download, pinned)) {
        if (!small_answer(download, pinned, multipart, &frame)) {
            refuse_verdict(request, PACK_BUSY);
            return;
        }
        if (frame == NULL) {
            http_respond_shed(request, 503, 1, "memory");
            return;
        }
    } else {
        transfer = start_transfer(request, download, pinned);
        if (transfer == NULL)
            return;
    }
    add_headers(request, download);
    if (transfer != NULL) {
        respond_large(request, download, transfer, pinned->fd, multipart, type);
        return;
    }
    metric_add(&metrics[SENT_BYTES], (int64_t)bytes_of(download));
    http_respond_frame(request, download->range_count == 0 ? 200 : 206, type, frame);
}

static int kind_of(const struct http_request *request, const struct download *download)
{
    if (http_method(request) == HTTP_HEAD)
        return HEAD;
    return download->range_count == 0 ? FULL : download->range_count == 1 ? RANGE : RANGES;
}

/* Answer with a verified file. */
static void respond_file(
    struct http_request *request, const struct download *download, struct pinned_file *pinned)
{
    struct multipart *multipart = NULL;

    if (download->range_count > 1) {
        multipart = http_alloc(request, sizeof *multipart);
        if (multipart == NULL) {
            http_respond_shed(request, 503, 1, "memory");
            return;
        }
        multipart_init(multipart, http_context(request), download);
    }
    metric_add(&metrics[kind_of(request, download)], 1);
    if (http_method(request) == HTTP_HEAD || download->file.size == 0)
        respond_head(request, download);
    else
        respond_bytes(request, download, pinned, multipart);
}

/* ---- verification --------------------------------------------------------------------------- */

/* Returns false if the file is not verified, or was changed or evicted meanwhile. */
static bool respond_warm(struct http_request *request, const struct download *download)
{
    struct pinned_file *pinned = integrity_warm(download->packs->integrity, &download->file);

    if (pinned != NULL)
        respond_file(request, download, pinned);
    pinned_unref(pinned);
    return pinned != NULL;
}

static void on_verdict(struct http_request *request, const struct tr_event *event);

static void ask_integrity(struct http_request *request, struct download *download)
{
    if (++download->asks > ASKS_MAX ||
        http_ask_flight(request, integrity_flight(download->packs->integrity), &download->file,
            sizeof download->file, on_verdict) < 0)
        refuse_verdict(request, PACK_BUSY);
}

static void on_verdict(struct http_request *request, const struct tr_event *event)
{
    struct download *download = http_data(request);
    enum pack_verdict verdict = PACK_BUSY;

    if (event->status == 0 && event->size == sizeof verdict)
        memcpy(&verdict, event->value, sizeof verdict);
    if (verdict != PACK_VERIFIED)
        refuse_verdict(request, verdict);
    else if (!respond_warm(request, download))
        ask_integrity(request, download);
}

/* Copy the download from the stack to the request, then wait for the verdict. */
static void ask_kept(struct http_request *request, const struct download *download)
{
    struct {
        struct download download;
        struct pack_version version;
        char user[];
    } *kept = http_alloc(request, sizeof *kept + download->options.user.size);

    if (kept == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    kept->download = *download;
    kept->version = *download->version;
    kept->download.version = &kept->version;
    if (download->options.user.at != NULL) {
        memcpy(kept->user, download->options.user.at, download->options.user.size);
        kept->download.options.user.at = kept->user;
    }
    http_set_data(request, &kept->download);
    ask_integrity(request, &kept->download);
}

/* ---- the request ---------------------------------------------------------------------------- */

static void not_satisfiable(struct http_request *request, const struct download *download)
{
    char text[40];
    int size = snprintf(text, sizeof text, "bytes */%llu", (unsigned long long)download->file.size);

    http_add_header(request, "Content-Range", (struct span){ text, (size_t)size });
    http_add_header(request, "ETag", etag_of(download));
    http_respond_error(
        request, 416, "RangeNotSatisfiable", "The file ends before the first byte of the range.");
}

void download_serve(struct http_request *request, struct packs *packs,
    const struct pack_version *version, const struct download_options *options)
{
    struct download download = { .packs = packs, .version = version, .options = *options };
    unsigned status;

    choose_coding(request, &download);
    status = http_condition(request, etag_of(&download), options->modified_s);
    if (status != 0) {
        add_common(request, &download);
        if (status == 304) {
            metric_add(&metrics[NOT_MODIFIED], 1);
            http_respond(request, 304, NULL, (struct span){ NULL, 0 });
        } else {
            http_respond_error(
                request, 412, "PreconditionFailed", "The file has changed; fetch it again.");
        }
        return;
    }
    /* RFC 9110 14.2: ranges are for GET alone; 13.1.5: not if If-Range names another entity. A date
     * does not identify the entity, because the codings of a version share it. So a date never
     * matches, and a client that resumes by date starts again. */
    if (http_method(request) == HTTP_GET && http_if_range(request, etag_of(&download), 0))
        download.range_count =
            http_range_parse(http_header(request, "Range"), download.file.size, download.ranges);
    if (download.range_count < 0)
        not_satisfiable(request, &download);
    else if (!respond_warm(request, &download))
        ask_kept(request, &download);
}

/* Everybody may download. A request with a token goes through the verifier; one without is counted
 * against its address, without a message to an actor. */
bool download_gate(struct http_request *request)
{
    const struct packs *packs = http_service(request);
    unsigned char key[17];
    size_t size;

    if (http_header(request, "Authorization").at != NULL)
        return auth_gate(request);
    size = rate_limit_address_key(http_peer(request), key);
    if (download_rate_take(packs->download_rate, (struct span){ (const char *)key, size },
            tr_now_ns(http_context(request))))
        return true;
    http_respond_shed(request, 429, 1, "address");
    return false;
}

/* The second since which a pack's own URL has meant its active version. After a rollback the active
 * version is older than the one it replaces, so its own date would hide the change; the pack's change
 * counts, rounded up. Until that second has started there is no date: another version may become
 * active in it, and a client could not tell the two apart. */
static uint64_t changed_s(const struct packs *packs, const struct pack *pack)
{
    uint64_t now_s = packs->calls.env->wall_ns(packs->calls.env->data) / 1000000000;
    uint64_t seconds = (uint64_t)pack->changed_ms / 1000 + 1;

    return seconds <= now_s ? seconds : 0;
}

void api_download(struct http_request *request)
{
    struct packs *packs = http_service(request);
    const struct pack_version *version = packs_find_version(request, catalogue_view(packs));
    const struct auth_claims *claims = auth_claims_of(request);
    struct download_options options = { .is_versioned =
                                            http_path_part(request, "version").at != NULL };

    if (version == NULL)
        return;
    if (claims != NULL)
        options.user = claims->issuer;
    options.modified_s =
        options.is_versioned ? (uint64_t)version->published_s : changed_s(packs, version->pack);
    download_serve(request, packs, version, &options);
}

/* ---- start and stop ------------------------------------------------------------------------- */

int objects_start(struct packs *packs, char *why, size_t why_size)
{
    return objects_open(packs->data_path, true, why, why_size, &packs->objects);
}

void objects_stop(struct packs *packs)
{
    objects_close(&packs->objects);
}

int downloads_start(struct packs *packs, char *why, size_t why_size)
{
    struct integrity_options options = { .source = hash_source_of(packs->objects),
        .hashes_max = packs->settings.hashes_max,
        .supervisor = packs->supervisor };
    struct transfer_limits limits = { .per_user = packs->settings.downloads_per_user,
        .per_address = packs->settings.downloads_per_address };
    int rc;

    (void)why;
    (void)why_size;
    tr_assert(packs->objects != NULL); /* this part starts before */
    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    rc = integrity_start(packs->system, &options, &packs->integrity);
    if (rc == 0)
        rc = transfers_start(packs->calls.env, &limits, &packs->transfers);
    if (rc == 0) {
        packs->download_rate = download_rate_create(packs->settings.requests_per_address);
        rc = packs->download_rate == NULL ? TR_ENOMEM : 0;
    }
    return rc;
}

void downloads_stop(struct packs *packs)
{
    transfers_stop(&packs->transfers);
    integrity_stop(&packs->integrity);
    download_rate_destroy(&packs->download_rate);
}
