/* SPDX-License-Identifier: Apache-2.0 */
/* client_easy.c: one request inside libcurl.
 *
 * The callbacks run inside libcurl, in the actor's turn. They only record in the job what they
 * see, and may end the transfer; the actor takes the handle apart afterwards. The callbacks
 * enforce the limits while bytes arrive: neither the header lines nor the body of an answer are
 * kept above them. */
#include <openssl/ssl.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "http/client_private.h"

enum { CONNECT_MS_MAX = 5000, IDLE_S_MAX = 60 };

/* How many bytes of bodies one turn takes before other actors get the worker. Left alone, libcurl
 * reads a hundred pieces at a time, which is long if each is written to a slow disk. */
enum { TURN_SIZE_MAX = 256 * 1024 };

/* ---- callbacks ----------------------------------------------------------------------------- */

/* End the transfer by taking 0 bytes, and record why. */
static size_t easy_end_with(struct client_job *job, int trouble)
{
    job->trouble = trouble;
    return 0;
}

static void easy_note_move(struct client_job *job)
{
    const struct tr_env *env = tr_system_env(job->actor->client->system);

    job->moved_ns = env->now_ns(env->data);
}

/* Find out where the body goes, at its first byte. `total` is UINT64_MAX if it is not known. */
static int easy_begin_body(struct client_job *job, uint64_t total)
{
    long status = 0;
    int rc;

    tr_assert(job->place == PLACE_UNKNOWN);
    job->place = PLACE_REPLY;
    if (job->transfer == NULL)
        return 0;
    curl_easy_getinfo(job->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status == 206 && http_client_transfer_kind(job->transfer) == HTTP_CLIENT_TO_FILE)
        total = job->head.range_size;
    rc = http_client_transfer_begin(job->transfer, (uint32_t)status, job->head.range_start, total);
    if (rc > 0)
        job->place = PLACE_TRANSFER;
    else if (job->size_max > HTTP_CLIENT_ANSWER_MAX)
        job->size_max = HTTP_CLIENT_ANSWER_MAX;
    if (job->place == PLACE_TRANSFER && total != UINT64_MAX && total > job->size_max)
        return TR_ETOOBIG;
    return rc < 0 ? rc : 0;
}

static uint64_t easy_announced(const struct client_job *job)
{
    curl_off_t size = -1;

    curl_easy_getinfo(job->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &size);
    return size < 0 ? UINT64_MAX : (uint64_t)size;
}

static int easy_put_body(struct client_job *job, const char *bytes, size_t size)
{
    uint64_t so_far = job->answer.size - sizeof(struct http_client_answer);

    if (job->place == PLACE_TRANSFER)
        so_far = http_client_transfer_progress(job->transfer, NULL);
    if (size > job->size_max - so_far)
        return TR_ETOOBIG;
    if (job->place == PLACE_TRANSFER)
        return http_client_transfer_put(job->transfer, bytes, size);
    return buffer_append(&job->answer, bytes, size);
}

static size_t easy_on_body(char *bytes, size_t size, size_t count, void *data)
{
    struct client_job *job = data;
    int rc = 0;

    size *= count;
    if (job->actor->turn_size >= TURN_SIZE_MAX) {
        job->is_paused = job->actor->has_paused = true;
        return CURL_WRITEFUNC_PAUSE; /* the same bytes come again */
    }
    job->actor->turn_size += size;
    easy_note_move(job);
    if (tr_reply_is_cancelled(job->reply)) /* the caller is gone: skip the rest */
        return easy_end_with(job, TR_ECANCELLED);
    if (job->place == PLACE_UNKNOWN)
        rc = easy_begin_body(job, easy_announced(job));
    if (rc == 0)
        rc = easy_put_body(job, bytes, size);
    return rc < 0 ? easy_end_with(job, rc) : size;
}

static size_t easy_on_read(char *bytes, size_t size, size_t count, void *data)
{
    struct client_job *job = data;
    int rc = http_client_transfer_get(job->transfer, bytes, size * count, &size);

    easy_note_move(job);
    if (rc < 0) {
        job->trouble = rc;
        return CURL_READFUNC_ABORT;
    }
    return size;
}

/* Send the body again: the server had closed the connection before it took the request. */
static int easy_on_seek(void *data, curl_off_t offset, int origin)
{
    struct client_job *job = data;

    if (origin != SEEK_SET || offset < 0 ||
        (uint64_t)offset > http_client_transfer_size(job->transfer))
        return CURL_SEEKFUNC_FAIL;
    http_client_transfer_rewind(job->transfer, (uint64_t)offset);
    return CURL_SEEKFUNC_OK;
}

/* Handle one header line. Lines of redirects, interim answers and trailers come here too. */
static size_t easy_on_header(char *bytes, size_t size, size_t count, void *data)
{
    struct client_job *job = data;
    struct span line = { bytes, size * count };

    easy_note_move(job);
    job->head_size += line.size;
    if (job->head_size > HTTP_CLIENT_HEAD_MAX)
        return easy_end_with(job, TR_ETOOBIG);
    if (span_starts(line, "HTTP/")) {
        job->hop = HOP_HEAD;
        http_client_head_reset(&job->head);
    } else if (http_client_line_is_end(line)) {
        job->hop = HOP_BODY;
    } else if (job->hop != HOP_BODY) {
        http_client_head_line(&job->head, line, tr_system_env(job->actor->client->system));
    }
    return size * count;
}

static void easy_set_link(struct client_job *job, enum client_link to)
{
    static const uint8_t moves[] = {
        [LINK_KEPT] = 1 << LINK_KEPT | 1 << LINK_OPENED | 1 << LINK_REFUSED | 1 << LINK_STALE,
        [LINK_OPENED] = 1 << LINK_KEPT | 1 << LINK_REFUSED,
        [LINK_REFUSED] = 1 << LINK_KEPT | 1 << LINK_REFUSED,
        [LINK_STALE] = 1 << LINK_KEPT,
    };

    tr_assert(moves[job->link] & 1 << to);
    job->link = to;
}

/* Open a socket. Every connection passes here, whatever name, address or redirect led to it. */
static curl_socket_t easy_on_open(void *data, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct client_job *job = data;

    if (purpose != CURLSOCKTYPE_IPCXN)
        return CURL_SOCKET_BAD;
    if (!job->actor->client->allow_private && !http_client_is_public(&address->addr)) {
        easy_set_link(job, LINK_REFUSED);
        return CURL_SOCKET_BAD;
    }
    if (base_fault_hit())
        return CURL_SOCKET_BAD;
    if (job->link == LINK_KEPT)
        easy_set_link(job, LINK_OPENED);
    return socket(
        address->family, address->socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address->protocol);
}

/* Start a hop: the connection is open and the request is about to be sent. */
static int easy_on_request(void *data, char *peer, char *local, int peer_port, int local_port)
{
    struct client_job *job = data;
    bool is_stale =
        job->link == LINK_KEPT && http_client_kept_has_unread(job->actor, job->easy, local_port);

    (void)peer;
    (void)local;
    (void)peer_port;
    job->hop = HOP_SENT;
    easy_set_link(job, is_stale ? LINK_STALE : LINK_KEPT);
    return is_stale ? CURL_PREREQFUNC_ABORT : CURL_PREREQFUNC_OK;
}

static CURLcode easy_on_tls(CURL *easy, void *context, void *data)
{
    const struct client_job *job = data;

    (void)easy;
    SSL_CTX_set1_cert_store(context, job->actor->client->authorities);
    return CURLE_OK;
}

/* ---- options ------------------------------------------------------------------------------- */

#define SET(easy, option, value) (curl_easy_setopt((easy), (option), (value)) == CURLE_OK)

static bool easy_set_policy(
    CURL *easy, const struct client_job *job, const struct http_client *client)
{
    const char *protocols = job->is_https ? "https" : "http,https";

    return SET(easy, CURLOPT_PROTOCOLS_STR, protocols) &&
           SET(easy, CURLOPT_REDIR_PROTOCOLS_STR, protocols) &&
           SET(easy, CURLOPT_DISALLOW_USERNAME_IN_URL, 1L) &&
           SET(easy, CURLOPT_PROXY, "") && /* ignore the environment's proxy too */
           SET(easy, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED) &&
           SET(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) &&
           SET(easy, CURLOPT_HTTP09_ALLOWED, 0L) &&
           SET(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2) &&
           SET(easy, CURLOPT_SSL_VERIFYPEER, 1L) && SET(easy, CURLOPT_SSL_VERIFYHOST, 2L) &&
           SET(easy, CURLOPT_CAINFO, NULL) && SET(easy, CURLOPT_CAPATH, NULL) &&
           SET(easy, CURLOPT_FOLLOWLOCATION, job->redirects_max > 0 ? 1L : 0L) &&
           SET(easy, CURLOPT_MAXREDIRS, (long)job->redirects_max) &&
           /* Signals belong to the program. libcurl writes with MSG_NOSIGNAL. */
           SET(easy, CURLOPT_NOSIGNAL, 1L) &&
           /* Do not wait for a lookup when its request ends: the thread ends by itself. */
           SET(easy, CURLOPT_QUICK_EXIT, 1L) &&
           SET(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS_MAX) &&
           SET(easy, CURLOPT_MAXAGE_CONN, (long)IDLE_S_MAX) &&
           SET(easy, CURLOPT_USERAGENT, client->user_agent);
}

/* libcurl repeats a request only on a kept connection, so a request that must not be repeated does
 * not use one. It leaves none either: a series of such requests would fill the pool. */
static bool easy_set_connection(CURL *easy, const struct client_job *job)
{
    return job->may_repeat ||
           (SET(easy, CURLOPT_FRESH_CONNECT, 1L) && SET(easy, CURLOPT_FORBID_REUSE, 1L));
}

static bool easy_set_callbacks(CURL *easy, struct client_job *job)
{
    return SET(easy, CURLOPT_PRIVATE, job) && SET(easy, CURLOPT_WRITEFUNCTION, easy_on_body) &&
           SET(easy, CURLOPT_WRITEDATA, job) && SET(easy, CURLOPT_HEADERFUNCTION, easy_on_header) &&
           SET(easy, CURLOPT_HEADERDATA, job) &&
           SET(easy, CURLOPT_OPENSOCKETFUNCTION, easy_on_open) &&
           SET(easy, CURLOPT_OPENSOCKETDATA, job) &&
           SET(easy, CURLOPT_PREREQFUNCTION, easy_on_request) &&
           SET(easy, CURLOPT_PREREQDATA, job) && SET(easy, CURLOPT_SSL_CTX_FUNCTION, easy_on_tls) &&
           SET(easy, CURLOPT_SSL_CTX_DATA, job);
}

static bool easy_is_upload(const struct client_job *job)
{
    return job->transfer != NULL &&
           http_client_transfer_kind(job->transfer) == HTTP_CLIENT_FROM_FILE;
}

static bool easy_set_upload(CURL *easy, struct client_job *job)
{
    curl_off_t size = (curl_off_t)http_client_transfer_size(job->transfer);

    return SET(easy, CURLOPT_POST, 1L) && SET(easy, CURLOPT_POSTFIELDSIZE_LARGE, size) &&
           SET(easy, CURLOPT_READFUNCTION, easy_on_read) && SET(easy, CURLOPT_READDATA, job) &&
           SET(easy, CURLOPT_SEEKFUNCTION, easy_on_seek) && SET(easy, CURLOPT_SEEKDATA, job);
}

static bool easy_set_request(CURL *easy, struct client_job *job)
{
    bool is_head = strcmp(job->method, "HEAD") == 0;
    bool is_get = strcmp(job->method, "GET") == 0;

    if (!SET(easy, CURLOPT_URL, job->url) || !SET(easy, CURLOPT_HTTPHEADER, job->headers))
        return false;
    if (is_head)
        return SET(easy, CURLOPT_NOBODY, 1L);
    /* This checks the announced length; easy_on_body counts the bytes. */
    if (!SET(easy, CURLOPT_MAXFILESIZE_LARGE, (curl_off_t)job->size_max))
        return false;
    if (is_get)
        return true;
    if (easy_is_upload(job) && !easy_set_upload(easy, job))
        return false;
    if (job->has_body && !easy_is_upload(job) &&
        !(SET(easy, CURLOPT_POST, 1L) &&
            SET(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)job->body_size) &&
            SET(easy, CURLOPT_POSTFIELDS, job->body == NULL ? "" : job->body)))
        return false;
    return SET(easy, CURLOPT_CUSTOMREQUEST, job->method);
}

int http_client_easy_start(struct client_job *job, struct client_actor *actor)
{
    static const struct http_client_answer none;
    const struct http_client *client = actor->client;

    tr_assert(job->easy == NULL);
    job->actor = actor;
    http_client_head_reset(&job->head);
    if (buffer_append(&job->answer, &none, sizeof none) < 0)
        return TR_ENOMEM;
    job->easy = base_fault_hit() ? NULL : curl_easy_init();
    if (job->easy == NULL || !easy_set_policy(job->easy, job, client) ||
        !easy_set_connection(job->easy, job) || !easy_set_callbacks(job->easy, job) ||
        !easy_set_request(job->easy, job))
        return TR_ENOMEM;
    return 0;
}

void http_client_easy_restart(struct client_job *job)
{
    easy_set_link(job, LINK_KEPT);
    http_client_head_reset(&job->head);
    (void)SET(job->easy, CURLOPT_FRESH_CONNECT, 1L);
}

/* ---- the end ------------------------------------------------------------------------------- */

/* The URL was checked before, so these codes are about a redirect's target, unless the peer does
 * not speak HTTP. */
static int easy_status_of_protocol(const struct client_job *job)
{
    return job->hop != HOP_SENT && job->redirects_max > 0 ? TR_EACCES : TR_EIO;
}

static int easy_status_of_memory(const struct client_job *job)
{
    curl_off_t first_byte_us = 0;

    /* libcurl has this code for a header line over 100 KB, too. */
    curl_easy_getinfo(job->easy, CURLINFO_STARTTRANSFER_TIME_T, &first_byte_us);
    return first_byte_us > 0 ? TR_ETOOBIG : TR_ENOMEM;
}

static int easy_status(const struct client_job *job, CURLcode code)
{
    if (job->trouble != 0)
        return job->trouble;
    if (code == CURLE_COULDNT_CONNECT && job->link == LINK_REFUSED)
        return TR_EACCES;
    if (code == CURLE_OPERATION_TIMEDOUT)
        return TR_ETIMEOUT;
    if (code == CURLE_FILESIZE_EXCEEDED)
        return TR_ETOOBIG;
    if (code == CURLE_TOO_MANY_REDIRECTS)
        return TR_ELIMIT;
    if (code == CURLE_OUT_OF_MEMORY)
        return easy_status_of_memory(job);
    if (code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_URL_MALFORMAT ||
        code == CURLE_LOGIN_DENIED)
        return easy_status_of_protocol(job);
    return TR_EIO;
}

int http_client_easy_end(struct client_job *job, CURLcode code)
{
    struct http_client_answer answer = { .max_age_s = job->head.max_age_s,
        .retry_after_s = job->head.retry_after_s };
    long status = 0;
    int rc = 0;

    if (code != CURLE_OK)
        return easy_status(job, code);
    curl_easy_getinfo(job->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status < 100 || status > 599)
        return TR_EIO;
    if (job->place == PLACE_UNKNOWN)
        rc = easy_begin_body(job, 0);
    if (rc < 0)
        return rc;
    if (job->place == PLACE_TRANSFER)
        http_client_transfer_end(job->transfer);
    answer.status = (uint32_t)status;
    memcpy(answer.content_type, job->head.content_type, sizeof answer.content_type);
    answer.body_size = (uint32_t)(job->answer.size - sizeof answer);
    memcpy(job->answer.bytes, &answer, sizeof answer);
    return 0;
}
