/* SPDX-License-Identifier: Apache-2.0 */
/* client.c: start and stop of the client. It checks and copies each request before it goes to the
 * actor. */
#include "http/client.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "http/client_private.h"

/* ---- start and stop ------------------------------------------------------------------------ */

static int client_check_options(const struct http_client_options *options)
{
    const curl_version_info_data *curl = curl_version_info(CURLVERSION_NOW);

    if (options->concurrent_max > HTTP_CLIENT_CONCURRENT_MAX ||
        options->queue_max > HTTP_CLIENT_QUEUE_MAX)
        return TR_EINVAL;
    /* Without a resolver thread a lookup would block the worker. Without OpenSSL the certificates
     * cannot be passed on. */
    if (!(curl->features & CURL_VERSION_ASYNCHDNS) || curl->ssl_version == NULL ||
        strncmp(curl->ssl_version, "OpenSSL/", 8) != 0)
        return TR_EUNSUPPORTED;
    return 0;
}

/* Read the certificates here: libcurl would read them on a worker, and a wrong path would show only
 * at the first request. */
static int client_read_authorities(const char *path, X509_STORE **ret_store)
{
    const curl_version_info_data *curl = curl_version_info(CURLVERSION_NOW);
    X509_STORE *store = X509_STORE_new();
    struct stat about;
    int ok;

    if (store == NULL)
        return TR_ENOMEM;
    if (path == NULL && curl->cainfo != NULL && stat(curl->cainfo, &about) == 0)
        ok = X509_STORE_load_file(store, curl->cainfo);
    else if (path == NULL)
        ok = X509_STORE_set_default_paths(store);
    else if (stat(path, &about) == 0 && S_ISDIR(about.st_mode))
        ok = X509_STORE_load_path(store, path);
    else
        ok = X509_STORE_load_file(store, path);
    if (ok != 1) {
        X509_STORE_free(store);
        return TR_EINVAL;
    }
    *ret_store = store;
    return 0;
}

static int client_spawn(struct http_client *client, tr_sender supervisor)
{
    uint32_t capacity = client->concurrent_max + client->queue_max;
    struct client_actor actor = { .client = client };
    int rc;

    _Static_assert(HTTP_CLIENT_CONCURRENT_MAX + HTTP_CLIENT_QUEUE_MAX <= TR_CAPACITY_MAX,
        "what may be under way fits the box");
    actor.multi = base_fault_hit() ? NULL : curl_multi_init();
    if (actor.multi == NULL)
        return TR_ENOMEM;
    rc = tr_spawn(client->system, &http_client_type, &actor,
        &(struct tr_spawn_options){ .name = "http_client",
            .owner = "http client",
            .box = { .capacity = capacity, .full = TR_FULL_FAIL },
            .ret_done = &client->done,
            .supervisor = supervisor },
        &client->sender);
    if (rc < 0)
        curl_multi_cleanup(actor.multi);
    return rc;
}

static void client_destroy(struct http_client *client)
{
    X509_STORE_free(client->authorities);
    base_free(client->user_agent);
    base_free(client);
    curl_global_cleanup(); /* libcurl counts its users */
}

int http_client_start(struct tr_system *system, const struct http_client_options *options,
    struct http_client **ret_client)
{
    struct http_client *client;
    int rc = client_check_options(options);

    if (rc < 0)
        return rc;
    client = base_calloc(sizeof *client);
    if (client == NULL)
        return TR_ENOMEM;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        base_free(client);
        return TR_ENOMEM;
    }
    client->system = system;
    client->allow_private = options->allow_private;
    client->concurrent_max = options->concurrent_max == 0 ? 64 : options->concurrent_max;
    client->queue_max = options->queue_max == 0 ? 1024 : options->queue_max;
    client->user_agent = base_strdup(options->user_agent == NULL ? "troupe" : options->user_agent);
    if (client->user_agent == NULL)
        rc = TR_ENOMEM;
    if (rc == 0)
        rc = client_read_authorities(options->ca_path, &client->authorities);
    if (rc == 0)
        rc = client_spawn(client, options->supervisor);
    if (rc < 0) {
        client_destroy(client);
        return rc;
    }
    *ret_client = client;
    return 0;
}

void http_client_stop(struct http_client **client)
{
    struct http_client *c = *client;

    if (c == NULL)
        return;
    *client = NULL;
    (void)tr_stop(tr_sender_weaken(c->sender)); /* it may have ended with the system's drain */
    tr_sender_drop(&c->sender);
    (void)tr_done_wait(&c->done, NULL, NULL, 0);
    client_destroy(c);
}

/* ---- checks of a request ------------------------------------------------------------------- */

static const char *client_method(const char *name)
{
    static const char *const methods[] = { "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE",
        "OPTIONS" };

    if (name == NULL)
        return methods[0];
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        if (strcmp(name, methods[i]) == 0)
            return methods[i];
    return NULL;
}

static bool is_plain_get(const char *method)
{
    return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
}

/* Returns true for methods of RFC 9110, section 9.2.2; PATCH is none (RFC 5789, section 2). */
static bool is_idempotent(const char *method)
{
    return strcmp(method, "POST") != 0 && strcmp(method, "PATCH") != 0;
}

/* Returns true for a token of RFC 9110, section 5.6.2. */
static bool is_token(struct span text)
{
    for (size_t i = 0; i < text.size; i++) {
        unsigned char c = (unsigned char)text.at[i];

        if (c <= ' ' || c >= 127 || strchr("\"(),/:;<=>?@[\\]{}", c) != NULL)
            return false;
    }
    return text.size > 0;
}

/* Returns true for fields that libcurl sets. Two opinions about where a message ends allow request
 * smuggling. */
static bool is_ours(struct span name)
{
    static const char *const ours[] = { "Host", "Content-Length", "Transfer-Encoding", "Connection",
        "Keep-Alive", "Upgrade", "TE", "Trailer", "Expect", "Accept-Encoding",
        "Proxy-Authorization", "Proxy-Connection" };

    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        if (span_is_nocase(name, ours[i]))
            return true;
    return false;
}

/* Check "Name: value". The value must not be empty: libcurl reads "Name:" as an order to omit the
 * field. */
static bool is_header(const char *line, struct span *ret_name)
{
    const char *colon = strchr(line, ':');
    bool has_value = false;

    if (colon == NULL)
        return false;
    *ret_name = (struct span){ line, (size_t)(colon - line) };
    if (!is_token(*ret_name) || is_ours(*ret_name))
        return false;
    for (const char *at = colon + 1; *at != '\0'; at++) {
        unsigned char c = (unsigned char)*at;

        if ((c < ' ' && c != '\t') || c == 127)
            return false;
        has_value = has_value || (c != ' ' && c != '\t');
    }
    return has_value;
}

static int job_add_header(struct client_job *job, const char *line)
{
    struct curl_slist *longer = curl_slist_append(job->headers, line);

    if (longer == NULL)
        return TR_ENOMEM;
    job->headers = longer;
    return 0;
}

static int job_copy_headers(struct client_job *job, const char *const *headers)
{
    bool has_type = false;
    size_t size = 0, count = 0;
    int rc = job_add_header(job, "Expect:"); /* do not wait for a 100 */

    for (; rc == 0 && headers != NULL && *headers != NULL; headers++) {
        struct span name;

        size += strlen(*headers);
        if (++count > HTTP_CLIENT_HEADERS_MAX || size > HTTP_CLIENT_HEADERS_SIZE_MAX)
            return TR_ETOOBIG;
        if (!is_header(*headers, &name))
            return TR_EINVAL;
        has_type = has_type || span_is_nocase(name, "Content-Type");
        rc = job_add_header(job, *headers);
    }
    if (rc == 0 && !has_type)
        rc = job_add_header(job, "Content-Type:"); /* libcurl would add the type of a form */
    return rc;
}

static int url_error(CURLUcode code)
{
    return code == CURLUE_OUT_OF_MEMORY ? TR_ENOMEM : TR_EINVAL;
}

/* Parse the URL with the library that will use it, so that both agree on the host. */
static int job_parse_url(struct client_job *job, CURLU *parts)
{
    char *scheme = NULL, *host = NULL;
    CURLUcode code = curl_url_set(parts, CURLUPART_URL, job->url, CURLU_DISALLOW_USER);
    int rc = 0;

    if (code == CURLUE_OK)
        code = curl_url_get(parts, CURLUPART_SCHEME, &scheme, 0);
    if (code == CURLUE_OK)
        code = curl_url_get(parts, CURLUPART_HOST, &host, 0);
    if (code != CURLUE_OK) {
        rc = url_error(code);
    } else {
        job->is_https = strcmp(scheme, "https") == 0;
        if (!job->is_https && strcmp(scheme, "http") != 0)
            rc = TR_EINVAL;
    }
    if (rc == 0) {
        job->host = base_strdup(host);
        rc = job->host == NULL ? TR_ENOMEM : 0;
    }
    curl_free(scheme);
    curl_free(host);
    return rc;
}

/* Add the header. A malformed value, which is our bug, could smuggle another header. */
static int job_add_trace(struct client_job *job, const char *traceparent)
{
    enum { VALUE_SIZE = 55 };
    char line[sizeof "traceparent: " + VALUE_SIZE];

    if (traceparent == NULL || traceparent[0] == '\0')
        return 0;
    if (strspn(traceparent, "0123456789abcdef-") != VALUE_SIZE || traceparent[VALUE_SIZE] != '\0')
        return TR_EINVAL;
    (void)snprintf(line, sizeof line, "traceparent: %s", traceparent);
    return job_add_header(job, line);
}

/* libcurl accepts one or three slashes too, and would then read the path as a host. */
static bool has_two_slashes(const char *url)
{
    const char *colon = strchr(url, ':');

    return colon != NULL && colon[1] == '/' && colon[2] == '/' && colon[3] != '/';
}

static int job_copy_url(struct client_job *job, const char *url)
{
    CURLU *parts;
    int rc;

    if (url == NULL || !has_two_slashes(url))
        return TR_EINVAL;
    if (strlen(url) > HTTP_CLIENT_URL_MAX)
        return TR_ETOOBIG;
    job->url = base_strdup(url);
    parts = job->url == NULL ? NULL : curl_url();
    rc = parts == NULL ? TR_ENOMEM : job_parse_url(job, parts);
    curl_url_cleanup(parts);
    return rc;
}

static int job_copy_body(struct client_job *job, struct span body)
{
    job->has_body = body.size > 0 || strcmp(job->method, "POST") == 0 ||
                    strcmp(job->method, "PUT") == 0 || strcmp(job->method, "PATCH") == 0;
    if (body.size > HTTP_CLIENT_BODY_MAX)
        return TR_ETOOBIG;
    if (body.size > 0 && is_plain_get(job->method))
        return TR_EINVAL;
    if (body.size == 0)
        return 0;
    job->body = base_alloc(body.size);
    if (job->body == NULL)
        return TR_ENOMEM;
    memcpy(job->body, body.at, body.size);
    job->body_size = body.size;
    return 0;
}

static bool has_header(const char *const *headers, const char *name)
{
    size_t size = strlen(name);

    for (; headers != NULL && *headers != NULL; headers++)
        if (strlen(*headers) > size && (*headers)[size] == ':' &&
            span_is_nocase((struct span){ *headers, size }, name))
            return true;
    return false;
}

static int job_use_upload(struct client_job *job, const struct http_client_request *request)
{
    job->has_body = strcmp(job->method, "POST") == 0 || strcmp(job->method, "PUT") == 0 ||
                    strcmp(job->method, "PATCH") == 0;
    return job->has_body && request->body.size == 0 ? 0 : TR_EINVAL;
}

static int job_use_download(struct client_job *job, const struct http_client_request *request)
{
    uint64_t offset = http_client_transfer_offset(request->transfer);
    char line[64];

    if (strcmp(job->method, "GET") != 0 || request->size_max == 0 || offset >= request->size_max ||
        has_header(request->headers, "Range"))
        return TR_EINVAL;
    if (offset == 0)
        return 0;
    (void)snprintf(line, sizeof line, "Range: bytes=%llu-", (unsigned long long)offset);
    return job_add_header(job, line);
}

/* Set up the body's way, and check the size the answer may have. */
static int job_use_transfer(struct client_job *job, const struct http_client_request *request)
{
    enum http_client_transfer_kind kind = request->transfer == NULL
                                              ? HTTP_CLIENT_FROM_FILE
                                              : http_client_transfer_kind(request->transfer);
    uint64_t limit = kind == HTTP_CLIENT_TO_FILE     ? HTTP_CLIENT_FILE_MAX
                     : kind == HTTP_CLIENT_TO_MEMORY ? HTTP_CLIENT_LARGE_MAX
                                                     : HTTP_CLIENT_ANSWER_MAX;

    if (request->size_max > limit)
        return TR_EINVAL;
    job->size_max = request->size_max == 0 ? limit : request->size_max;
    if (request->transfer == NULL || kind == HTTP_CLIENT_TO_MEMORY)
        return 0;
    return kind == HTTP_CLIENT_TO_FILE ? job_use_download(job, request)
                                       : job_use_upload(job, request);
}

static int job_set_times(
    struct client_job *job, const struct http_client_request *request, uint64_t now_ns)
{
    bool has_stall = request->stall_ns != 0;
    uint64_t limit_ns = TR_SECONDS(has_stall ? 24 * 3600 : 3600);
    uint64_t timeout_ns = request->timeout_ns != 0 ? request->timeout_ns
                          : has_stall              ? limit_ns
                                                   : TR_SECONDS(10);

    if (timeout_ns > limit_ns || request->stall_ns > limit_ns)
        return TR_EINVAL;
    job->asked_ns = job->moved_ns = now_ns;
    job->deadline_ns = now_ns + timeout_ns;
    job->stall_ns = request->stall_ns;
    return 0;
}

static int job_fill(
    struct client_job *job, const struct http_client_request *request, uint64_t now_ns)
{
    int rc;

    job->method = client_method(request->method);
    if (job->method == NULL || request->redirects_max > HTTP_CLIENT_REDIRECTS_MAX)
        return TR_EINVAL;
    /* A redirected POST becomes a GET or is sent twice, so callers that want that do it
     * themselves. */
    if (request->redirects_max > 0 && !is_plain_get(job->method))
        return TR_EINVAL;
    job->redirects_max = request->redirects_max;
    job->may_repeat = request->may_repeat || is_idempotent(job->method);
    rc = job_set_times(job, request, now_ns);
    if (rc == 0)
        rc = job_copy_url(job, request->url);
    if (rc == 0)
        rc = job_copy_headers(job, request->headers);
    if (rc == 0)
        rc = job_add_trace(job, request->traceparent);
    if (rc == 0)
        rc = job_copy_body(job, request->body);
    if (rc == 0)
        rc = job_use_transfer(job, request);
    return rc;
}

int http_client_job_create(
    const struct http_client_request *request, uint64_t now_ns, struct client_job **ret_job)
{
    struct client_job *job = base_calloc(sizeof *job);
    int rc = job == NULL ? TR_ENOMEM : job_fill(job, request, now_ns);

    if (rc < 0) {
        http_client_job_destroy(job);
        return rc;
    }
    *ret_job = job;
    return 0;
}

void http_client_job_detach(struct client_job *job)
{
    if (job->transfer != NULL)
        http_client_transfer_detach(job->transfer);
    job->transfer = NULL;
}

void http_client_job_destroy(struct client_job *job)
{
    if (job == NULL)
        return;
    if (job->easy != NULL)
        curl_easy_cleanup(job->easy);
    http_client_job_detach(job);
    curl_slist_free_all(job->headers);
    buffer_free(&job->answer);
    base_free(job->url);
    base_free(job->host);
    base_free(job->body);
    base_free(job);
}

bool http_client_takes(const char *url)
{
    struct client_job *job;

    if (http_client_job_create(&(struct http_client_request){ .url = url }, 0, &job) < 0)
        return false;
    http_client_job_destroy(job);
    return true;
}

/* ---- asks ---------------------------------------------------------------------------------- */

static int client_make_job(struct http_client *client, const struct http_client_request *request,
    uint64_t now_ns, struct client_job **ret_job)
{
    struct client_job *job;
    int rc = http_client_job_create(request, now_ns, &job);

    if (rc < 0)
        return rc;
    if (request->transfer != NULL &&
        http_client_transfer_attach(request->transfer, client->sender) < 0) {
        http_client_job_destroy(job);
        return TR_EINVAL;
    }
    job->transfer = request->transfer;
    *ret_job = job;
    return 0;
}

int http_client_ask(struct tr_context *ctx, struct http_client *client,
    const struct http_client_request *request, uint32_t tag)
{
    struct client_message message;
    int rc;

    rc = client_make_job(client, request, tr_now_ns(ctx), &message.job);
    if (rc < 0)
        return rc;
    rc = tr_ask(ctx, client->sender, &message, sizeof message,
        &(struct tr_ask_options){
            .tag = tag, .timeout_ns = message.job->deadline_ns - message.job->asked_ns });
    if (rc < 0)
        http_client_job_destroy(message.job);
    return rc;
}

static int client_wait_for(struct tr_future *future, struct buffer *body)
{
    enum { ROOM = sizeof(struct http_client_answer) + HTTP_CLIENT_ANSWER_MAX };
    struct http_client_answer *answer = base_alloc(ROOM);
    size_t size;
    int rc;

    if (answer == NULL)
        return TR_ENOMEM;
    rc = tr_future_wait(future, answer, ROOM, &size, 0);
    if (rc == 0) {
        tr_assert(size >= sizeof *answer);
        tr_assert(size == sizeof *answer + answer->body_size);
        rc = buffer_append(body, answer->body, answer->body_size);
    }
    if (rc == 0)
        rc = (int)answer->status;
    base_free(answer);
    return rc;
}

int http_client_wait(
    struct http_client *client, const struct http_client_request *request, struct buffer *body)
{
    const struct tr_env *env = tr_system_env(client->system);
    struct client_message message;
    struct tr_future *future;
    int rc;

    rc = client_make_job(client, request, env->now_ns(env->data), &message.job);
    if (rc < 0)
        return rc;
    rc = tr_ask_future(client->sender, &message, sizeof message,
        message.job->deadline_ns - message.job->asked_ns, &future);
    if (rc < 0) {
        http_client_job_destroy(message.job);
        return rc;
    }
    rc = client_wait_for(future, body);
    tr_future_drop(&future);
    return rc;
}
