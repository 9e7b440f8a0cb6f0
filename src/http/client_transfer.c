/* SPDX-License-Identifier: Apache-2.0 */
/* client_transfer.c: one request inside libcurl.
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

/* ---- Cache-Control ------------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static struct span line_trimmed(struct span text)
{
    while (text.size > 0 && is_space(text.at[0])) {
        text.at++;
        text.size--;
    }
    while (text.size > 0 && is_space(text.at[text.size - 1]))
        text.size--;
    return text;
}

/* Take the text up to the next comma outside quotes; *rest begins behind it. */
static struct span next_directive(struct span *rest)
{
    struct span one = { rest->at, 0 };
    bool is_quoted = false;

    while (one.size < rest->size && (is_quoted || rest->at[one.size] != ',')) {
        if (rest->at[one.size] == '"')
            is_quoted = !is_quoted;
        one.size++;
    }
    rest->at += one.size;
    rest->size -= one.size;
    if (rest->size > 0) {
        rest->at++;
        rest->size--;
    }
    return line_trimmed(one);
}

/* Parse seconds (RFC 9111, section 1.2.2). An unreadable value counts as stale (section 4.2.1). */
static uint32_t seconds_of(struct span text)
{
    uint64_t seconds;

    text = line_trimmed(text);
    if (text.size >= 2 && text.at[0] == '"' && text.at[text.size - 1] == '"')
        text = (struct span){ text.at + 1, text.size - 2 };
    if (text.size == 0)
        return 0;
    for (size_t i = 0; i < text.size; i++)
        if (text.at[i] < '0' || text.at[i] > '9')
            return 0;
    if (!span_u64(text, &seconds) || seconds > INT32_MAX)
        return INT32_MAX;
    return (uint32_t)seconds;
}

uint32_t http_client_max_age(struct span value, uint32_t max_age_s)
{
    while (value.size > 0) {
        struct span directive = next_directive(&value);
        const char *equals = directive.size == 0 ? NULL : memchr(directive.at, '=', directive.size);
        struct span name = directive, argument = { NULL, 0 };
        uint32_t seconds = max_age_s;

        if (equals != NULL) {
            name.size = (size_t)(equals - directive.at);
            argument = (struct span){ equals + 1, directive.size - name.size - 1 };
        }
        if (span_is_nocase(name, "no-store") ||
            (span_is_nocase(name, "no-cache") && equals == NULL))
            seconds = 0;
        else if (span_is_nocase(name, "max-age"))
            seconds = seconds_of(argument);
        if (seconds < max_age_s)
            max_age_s = seconds;
    }
    return max_age_s;
}

/* ---- callbacks ----------------------------------------------------------------------------- */

/* End the transfer by taking 0 bytes, and record why. */
static size_t transfer_end_with(struct client_job *job, int trouble)
{
    job->trouble = trouble;
    return 0;
}

static size_t transfer_on_body(char *bytes, size_t size, size_t count, void *data)
{
    struct client_job *job = data;
    size_t so_far = job->answer.size - sizeof(struct http_client_answer);

    size *= count;
    if (tr_reply_is_cancelled(job->reply)) /* the caller is gone: skip the rest */
        return transfer_end_with(job, TR_ECANCELLED);
    if (size > job->size_max - so_far)
        return transfer_end_with(job, TR_ETOOBIG);
    if (buffer_append(&job->answer, bytes, size) < 0)
        return transfer_end_with(job, TR_ENOMEM);
    return size;
}

static bool line_take_name(struct span *line, const char *name)
{
    size_t size = strlen(name);

    if (line->size <= size || line->at[size] != ':' ||
        !span_is_nocase((struct span){ line->at, size }, name))
        return false;
    line->at += size + 1;
    line->size -= size + 1;
    return true;
}

/* Handle one header line. Lines of redirects, interim answers and trailers come here too. */
static size_t transfer_on_header(char *bytes, size_t size, size_t count, void *data)
{
    struct client_job *job = data;
    struct span line = { bytes, size * count };

    job->head_size += line.size;
    if (job->head_size > HTTP_CLIENT_HEAD_MAX)
        return transfer_end_with(job, TR_ETOOBIG);
    if (span_starts(line, "HTTP/")) {
        job->hop = HOP_HEAD;
        job->max_age_s = UINT32_MAX;
    } else if (line_trimmed(line).size == 0) {
        job->hop = HOP_BODY;
    } else if (job->hop != HOP_BODY && line_take_name(&line, "cache-control")) {
        job->max_age_s = http_client_max_age(line, job->max_age_s);
    }
    return size * count;
}

/* Open a socket. Every connection passes here, whatever name, address or redirect led to it. */
static curl_socket_t transfer_on_open(
    void *data, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct client_job *job = data;

    if (purpose != CURLSOCKTYPE_IPCXN)
        return CURL_SOCKET_BAD;
    if (!job->client->allow_private && !http_client_is_public(&address->addr)) {
        job->was_refused = true;
        return CURL_SOCKET_BAD;
    }
    if (base_fault_hit())
        return CURL_SOCKET_BAD;
    return socket(
        address->family, address->socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address->protocol);
}

/* Start a hop: the connection is open and the request is about to be sent. */
static int transfer_on_request(void *data, char *peer, char *local, int peer_port, int local_port)
{
    struct client_job *job = data;

    (void)peer;
    (void)local;
    (void)peer_port;
    (void)local_port;
    job->was_refused = false;
    job->hop = HOP_SENT;
    return CURL_PREREQFUNC_OK;
}

static CURLcode transfer_on_tls(CURL *easy, void *context, void *data)
{
    const struct client_job *job = data;

    (void)easy;
    SSL_CTX_set1_cert_store(context, job->client->authorities);
    return CURLE_OK;
}

/* ---- options ------------------------------------------------------------------------------- */

#define SET(easy, option, value) (curl_easy_setopt((easy), (option), (value)) == CURLE_OK)

static bool transfer_set_policy(
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

static bool transfer_set_callbacks(CURL *easy, struct client_job *job)
{
    return SET(easy, CURLOPT_PRIVATE, job) && SET(easy, CURLOPT_WRITEFUNCTION, transfer_on_body) &&
           SET(easy, CURLOPT_WRITEDATA, job) &&
           SET(easy, CURLOPT_HEADERFUNCTION, transfer_on_header) &&
           SET(easy, CURLOPT_HEADERDATA, job) &&
           SET(easy, CURLOPT_OPENSOCKETFUNCTION, transfer_on_open) &&
           SET(easy, CURLOPT_OPENSOCKETDATA, job) &&
           SET(easy, CURLOPT_PREREQFUNCTION, transfer_on_request) &&
           SET(easy, CURLOPT_PREREQDATA, job) &&
           SET(easy, CURLOPT_SSL_CTX_FUNCTION, transfer_on_tls) &&
           SET(easy, CURLOPT_SSL_CTX_DATA, job);
}

static bool transfer_set_request(CURL *easy, const struct client_job *job)
{
    bool is_head = strcmp(job->method, "HEAD") == 0;
    bool is_get = strcmp(job->method, "GET") == 0;

    if (!SET(easy, CURLOPT_URL, job->url) || !SET(easy, CURLOPT_HTTPHEADER, job->headers))
        return false;
    if (is_head)
        return SET(easy, CURLOPT_NOBODY, 1L);
    /* This checks the announced length; transfer_on_body counts the bytes. */
    if (!SET(easy, CURLOPT_MAXFILESIZE_LARGE, (curl_off_t)job->size_max))
        return false;
    if (is_get)
        return true;
    if (job->has_body && !(SET(easy, CURLOPT_POST, 1L) &&
                             SET(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)job->body_size) &&
                             SET(easy, CURLOPT_POSTFIELDS, job->body == NULL ? "" : job->body)))
        return false;
    return SET(easy, CURLOPT_CUSTOMREQUEST, job->method);
}

int http_client_transfer_start(struct client_job *job, const struct http_client *client)
{
    static const struct http_client_answer none;

    tr_assert(job->easy == NULL);
    job->client = client;
    job->max_age_s = UINT32_MAX;
    if (buffer_append(&job->answer, &none, sizeof none) < 0)
        return TR_ENOMEM;
    job->easy = base_fault_hit() ? NULL : curl_easy_init();
    if (job->easy == NULL || !transfer_set_policy(job->easy, job, client) ||
        !transfer_set_callbacks(job->easy, job) || !transfer_set_request(job->easy, job))
        return TR_ENOMEM;
    return 0;
}

/* ---- the end ------------------------------------------------------------------------------- */

/* The URL was checked before, so these codes are about a redirect's target, unless the peer does
 * not speak HTTP. */
static int transfer_status_of_protocol(const struct client_job *job)
{
    return job->hop != HOP_SENT && job->redirects_max > 0 ? TR_EACCES : TR_EIO;
}

static int transfer_status_of_memory(const struct client_job *job)
{
    curl_off_t first_byte_us = 0;

    /* libcurl has this code for a header line over 100 KB, too. */
    curl_easy_getinfo(job->easy, CURLINFO_STARTTRANSFER_TIME_T, &first_byte_us);
    return first_byte_us > 0 ? TR_ETOOBIG : TR_ENOMEM;
}

static int transfer_status(const struct client_job *job, CURLcode code)
{
    if (job->trouble != 0)
        return job->trouble;
    if (code == CURLE_COULDNT_CONNECT && job->was_refused)
        return TR_EACCES;
    if (code == CURLE_OPERATION_TIMEDOUT)
        return TR_ETIMEOUT;
    if (code == CURLE_FILESIZE_EXCEEDED)
        return TR_ETOOBIG;
    if (code == CURLE_TOO_MANY_REDIRECTS)
        return TR_ELIMIT;
    if (code == CURLE_OUT_OF_MEMORY)
        return transfer_status_of_memory(job);
    if (code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_URL_MALFORMAT ||
        code == CURLE_LOGIN_DENIED)
        return transfer_status_of_protocol(job);
    return TR_EIO;
}

int http_client_transfer_end(struct client_job *job, CURLcode code)
{
    struct http_client_answer answer = { .max_age_s = job->max_age_s };
    long status = 0;

    if (code != CURLE_OK)
        return transfer_status(job, code);
    curl_easy_getinfo(job->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status < 100 || status > 599)
        return TR_EIO;
    answer.status = (uint32_t)status;
    answer.body_size = (uint32_t)(job->answer.size - sizeof answer);
    memcpy(job->answer.bytes, &answer, sizeof answer);
    return 0;
}
