/* SPDX-License-Identifier: Apache-2.0 */
/* client_actor.c: the actor that owns libcurl's multi handle.
 *
 *     message --> queue --> active (in the multi handle) --> answered, freed
 *                   \_________________\___ deadline, stop ___/
 *
 * libcurl does not wait itself. It names the descriptors and the one timer it needs, and the actor
 * calls it when they are ready. It expects a call again and again while a descriptor is ready, so
 * watches are one-shot and armed again after each call.
 *
 * Invariants:
 *  1. A job is either in the queue or active. It has an open reply and a timer that ends it at its
 *     deadline or when no byte moves any more. So every request ends, even if libcurl or a watch fails.
 *  2. A job is active if and only if its easy handle is in the multi handle.
 *  3. active_count <= concurrent_max. Between handlers, active_count == concurrent_max while a job
 *     is queued.
 *  4. Handles are added and removed only outside libcurl's callbacks.
 *  5. The actor stops watching a descriptor before libcurl closes it: CURL_POLL_REMOVE comes first.
 *  6. `ctx` is set exactly while a handler runs. */
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "http/client_private.h"
#include "support/log.h"
#include "support/metric.h"

enum { TAG_SOCKET = 1, TAG_TIMER, TAG_DEADLINE };

/* How many times libcurl may run again at once before other actors get the worker. */
enum { ROUNDS_MAX = 16 };

struct client_socket {
    int fd;
    unsigned events;
    bool is_armed;
};

/* ---- metrics ------------------------------------------------------------------------------- */

#define FAILURE(reason)                                                                            \
    {                                                                                              \
        "troupe_http_client_failures_total", "reason=\"" reason "\"",                              \
            "Requests to other servers that got no answer.", METRIC_COUNTER, 0, NULL, NULL         \
    }

static struct metric_histogram seconds;
static struct metric metrics[] = {
    { "troupe_http_client_requests_total", NULL, "Requests to other servers.", METRIC_COUNTER, 0,
        NULL, NULL },
    { "troupe_http_client_active", NULL, "Requests to other servers in progress.", METRIC_GAUGE, 0,
        NULL, NULL },
    { "troupe_http_client_queued", NULL, "Requests to other servers that wait for a free slot.",
        METRIC_GAUGE, 0, NULL, NULL },
    { "troupe_http_client_seconds", NULL, "Time from a request to another server to its end.",
        METRIC_HISTOGRAM, 0, &seconds, NULL },
    FAILURE("timeout"),
    FAILURE("refused"),
    FAILURE("too_big"),
    FAILURE("redirects"),
    FAILURE("io"),
    FAILURE("full"),
    FAILURE("closed"),
    FAILURE("cancelled"),
    FAILURE("memory"),
    FAILURE("disk"),
};
enum { REQUESTS, ACTIVE, QUEUED, SECONDS, FAILURES };

static const int failures[] = { TR_ETIMEOUT, TR_EACCES, TR_ETOOBIG, TR_ELIMIT, TR_EIO, TR_EFULL,
    TR_ECLOSED, TR_ECANCELLED, TR_ENOMEM, TR_ENOSPC };
_Static_assert(
    sizeof metrics / sizeof metrics[0] == FAILURES + sizeof failures / sizeof failures[0],
    "each failure has its counter");

static void client_count_end(const struct client_job *job, uint64_t now_ns, int status)
{
    metric_observe(&metrics[SECONDS], now_ns - job->asked_ns);
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++)
        if (failures[i] == status)
            metric_add(&metrics[FAILURES + i], 1);
}

/* Log only the host of the URL: paths and queries may contain secrets. */
static void client_log_failure(const struct client_job *job, int status, CURLcode code)
{
    if (status == TR_EACCES)
        LOG(LOG_WARN, "http_client", "a request to an address that is not allowed was refused",
            LOG_TEXT("host", job->host));
    else if (status != TR_ECLOSED && status != TR_ECANCELLED)
        LOG(LOG_INFO, "http_client", "a request failed", LOG_TEXT("host", job->host),
            LOG_TEXT("error", tr_error_name(status)),
            LOG_TEXT("why", code == CURLE_OK ? "" : curl_easy_strerror(code)));
}

/* ---- the end of a job ---------------------------------------------------------------------- */

/* End a job that is in no list any more. */
static void client_end_job(
    struct client_actor *self, struct client_job *job, int status, CURLcode code)
{
    bool is_answer = status == 0;

    tr_timer_stop(self->ctx, job->timer_id);
    client_count_end(job, tr_now_ns(self->ctx), status);
    if (!is_answer)
        client_log_failure(job, status, code);
    http_client_job_detach(job); /* first: the asker frees the body when it has the answer */
    (void)tr_reply_send(&job->reply, status, is_answer ? job->answer.bytes : NULL,
        is_answer ? job->answer.size : 0); /* a caller that gave up has its answer already */
    http_client_job_destroy(job);
}

static void client_leave_queue(struct client_actor *self, struct client_job **link)
{
    struct client_job *job = *link;

    *link = job->next;
    if (self->queue_end == &job->next)
        self->queue_end = link;
    self->queue_count--;
    metric_add(&metrics[QUEUED], -1);
}

/* Take the job from the active list and its handle from libcurl. */
static void client_leave_active(struct client_actor *self, struct client_job *job)
{
    struct client_job **link = &self->active;

    while (*link != job)
        link = &(*link)->next;
    *link = job->next;
    self->active_count--;
    metric_add(&metrics[ACTIVE], -1);
    curl_multi_remove_handle(self->multi, job->easy);
}

static void client_end_active(
    struct client_actor *self, struct client_job *job, int status, CURLcode code)
{
    client_leave_active(self, job);
    client_end_job(self, job, status, code);
}

static void client_end_all(struct client_actor *self, int status)
{
    while (self->active != NULL)
        client_end_active(self, self->active, status, CURLE_OK);
    while (self->queue != NULL) {
        struct client_job *job = self->queue;

        client_leave_queue(self, &self->queue);
        client_end_job(self, job, status, CURLE_OK);
    }
}

/* ---- sockets and timer of libcurl ---------------------------------------------------------- */

static struct client_socket *client_socket_find(struct client_actor *self, int fd)
{
    for (uint32_t i = 0; i < self->socket_count; i++)
        if (self->sockets[i].fd == fd)
            return &self->sockets[i];
    return NULL;
}

static struct client_socket *client_socket_add(struct client_actor *self, int fd)
{
    if (self->socket_count == self->socket_capacity) {
        uint32_t capacity = self->socket_capacity == 0 ? 16 : 2 * self->socket_capacity;
        struct client_socket *sockets =
            base_realloc(self->sockets, capacity * sizeof *self->sockets);

        if (sockets == NULL)
            return NULL;
        self->sockets = sockets;
        self->socket_capacity = capacity;
    }
    self->sockets[self->socket_count] = (struct client_socket){ .fd = fd };
    return &self->sockets[self->socket_count++];
}

static void client_socket_arm(struct client_actor *self, struct client_socket *at)
{
    at->is_armed = tr_fd_watch(self->ctx, at->fd, at->events, TAG_SOCKET) == 0;
}

/* Without memory a socket is watched after the next event; if none comes its request ends at its
 * deadline. An error returned to libcurl would end all requests. */
static int client_on_socket(CURL *easy, curl_socket_t fd, int what, void *data, void *socket_data)
{
    struct client_actor *self = data;
    struct client_socket *at = client_socket_find(self, fd);

    (void)easy;
    (void)socket_data;
    tr_assert(self->ctx != NULL);
    if (what == CURL_POLL_REMOVE) {
        (void)tr_fd_forget(self->ctx, fd);
        if (at != NULL)
            *at = self->sockets[--self->socket_count];
        return 0;
    }
    if (at == NULL)
        at = client_socket_add(self, fd);
    if (at == NULL)
        return 0;
    at->events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
    client_socket_arm(self, at);
    return 0;
}

static void client_set_timer(struct client_actor *self, uint64_t delay_ns)
{
    if (tr_after(self->ctx, delay_ns, TAG_TIMER, &self->timer_id) < 0)
        self->timer_id = 0; /* the deadlines of the requests still hold */
}

static int client_on_timer(CURLM *multi, long timeout_ms, void *data)
{
    struct client_actor *self = data;

    (void)multi;
    tr_assert(self->ctx != NULL);
    if (self->timer_id != 0)
        tr_timer_stop(self->ctx, self->timer_id);
    self->timer_id = 0;
    self->is_due = timeout_ms == 0; /* libcurl must not be called from here */
    if (timeout_ms > 0)
        client_set_timer(self, TR_MILLISECONDS(timeout_ms));
    return 0;
}

/* ---- running libcurl ----------------------------------------------------------------------- */

static void client_run_curl(struct client_actor *self, int fd, int ready)
{
    int running;

    (void)curl_multi_socket_action(self->multi, fd, ready, &running);
}

/* Returns false if memory is out. */
static bool client_restart_job(struct client_actor *self, struct client_job *job)
{
    curl_multi_remove_handle(self->multi, job->easy);
    http_client_easy_restart(job);
    return curl_multi_add_handle(self->multi, job->easy) == CURLM_OK;
}

static void client_collect_ended(struct client_actor *self)
{
    CURLMsg *message;
    int more;

    while ((message = curl_multi_info_read(self->multi, &more)) != NULL) {
        CURLcode code = message->data.result;
        struct client_job *job = NULL;

        if (message->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&job);
        tr_assert(job != NULL);
        tr_assert(job->easy == message->easy_handle);
        if (code == CURLE_OK)
            http_client_kept_note(self, job->easy);
        if (job->link != LINK_STALE || !client_restart_job(self, job))
            client_end_active(self, job, http_client_easy_end(job, code), code);
    }
}

static bool job_is_cancelled(const struct client_job *job)
{
    return job->transfer != NULL && http_client_transfer_is_cancelled(job->transfer);
}

static void client_start_job(struct client_actor *self, struct client_job *job)
{
    int status;

    if (tr_reply_is_cancelled(job->reply) || job_is_cancelled(job)) {
        client_end_job(self, job, TR_ECANCELLED, CURLE_OK);
        return;
    }
    status = http_client_easy_start(job, self);
    if (status == 0 && curl_multi_add_handle(self->multi, job->easy) != CURLM_OK)
        status = TR_ENOMEM;
    if (status < 0) {
        client_end_job(self, job, status, CURLE_OK);
        return;
    }
    job->next = self->active;
    self->active = job;
    self->active_count++;
    metric_add(&metrics[ACTIVE], 1);
}

static void client_start_queued(struct client_actor *self)
{
    while (self->queue != NULL && self->active_count < self->client->concurrent_max) {
        struct client_job *job = self->queue;

        client_leave_queue(self, &self->queue);
        client_start_job(self, job);
    }
}

/* Let the paused jobs take the bytes that libcurl has kept. */
static void client_resume(struct client_actor *self)
{
    struct client_job *next;

    self->has_paused = false;
    for (struct client_job *job = self->active; job != NULL; job = next) {
        CURLcode code;

        next = job->next;
        if (!job->is_paused)
            continue;
        job->is_paused = false;
        code = curl_easy_pause(job->easy, CURLPAUSE_CONT);
        if (code != CURLE_OK)
            client_end_active(self, job, http_client_easy_end(job, code), code);
    }
}

/* Start a turn of the client. */
static void client_enter(struct client_actor *self, struct tr_context *ctx)
{
    self->ctx = ctx;
    self->turn_size = 0;
    if (self->has_paused)
        client_resume(self);
}

/* Answer ended jobs, start queued ones, and watch sockets. Called after every event. */
static void client_settle(struct client_actor *self)
{
    struct client_message wake = { NULL };

    for (int rounds = 0;; rounds++) {
        client_collect_ended(self);
        client_start_queued(self);
        if (!self->is_due)
            break;
        if (rounds == ROUNDS_MAX) {
            if (self->timer_id == 0)
                client_set_timer(self, TR_MILLISECONDS(1));
            break;
        }
        self->is_due = false;
        client_run_curl(self, CURL_SOCKET_TIMEOUT, 0);
    }
    for (uint32_t i = 0; i < self->socket_count; i++)
        if (!self->sockets[i].is_armed)
            client_socket_arm(self, &self->sockets[i]);
    if (self->has_paused && tr_self_tell(self->ctx, &wake, sizeof wake) < 0 && self->timer_id == 0)
        client_set_timer(self, TR_MILLISECONDS(1));
}

static void client_on_ready(struct client_actor *self, const struct tr_event *event)
{
    struct client_socket *at = client_socket_find(self, event->fd);
    int ready = 0;

    if (at == NULL)
        return;
    at->is_armed = false;
    if (event->ready & (EPOLLIN | EPOLLHUP | EPOLLRDHUP))
        ready |= CURL_CSELECT_IN;
    if (event->ready & EPOLLOUT)
        ready |= CURL_CSELECT_OUT;
    if (event->ready & EPOLLERR)
        ready |= CURL_CSELECT_ERR;
    client_run_curl(self, event->fd, ready);
}

/* ---- deadlines and cancels ----------------------------------------------------------------- */

/* Returns 0 if the job is over its time. */
static uint64_t client_time_left_ns(const struct client_job *job, uint64_t now_ns)
{
    uint64_t until_ns = job->deadline_ns;

    if (job->stall_ns != 0 && job->moved_ns + job->stall_ns < until_ns)
        until_ns = job->moved_ns + job->stall_ns;
    return until_ns > now_ns ? until_ns - now_ns : 0;
}

/* Returns 0 if the job goes on: a byte has moved since its timer was set. */
static int client_timer_fired(struct client_actor *self, struct client_job *job)
{
    uint64_t left_ns = client_time_left_ns(job, tr_now_ns(self->ctx));

    if (left_ns == 0)
        return TR_ETIMEOUT;
    return tr_after(self->ctx, left_ns, TAG_DEADLINE, &job->timer_id);
}

static void client_on_deadline(struct client_actor *self, uint64_t timer_id)
{
    int status;

    for (struct client_job *job = self->active; job != NULL; job = job->next)
        if (job->timer_id == timer_id) {
            status = client_timer_fired(self, job);
            if (status < 0)
                client_end_active(self, job, status, CURLE_OK);
            return;
        }
    for (struct client_job **link = &self->queue; *link != NULL; link = &(*link)->next)
        if ((*link)->timer_id == timer_id) {
            struct client_job *job = *link;

            status = client_timer_fired(self, job);
            if (status < 0) {
                client_leave_queue(self, link);
                client_end_job(self, job, status, CURLE_OK);
            }
            return;
        }
}

static void client_end_cancelled(struct client_actor *self)
{
    struct client_job **link = &self->queue, *next;

    for (struct client_job *job = self->active; job != NULL; job = next) {
        next = job->next;
        if (job_is_cancelled(job))
            client_end_active(self, job, TR_ECANCELLED, CURLE_OK);
    }
    while (*link != NULL) {
        struct client_job *job = *link;

        if (!job_is_cancelled(job)) {
            link = &job->next;
            continue;
        }
        client_leave_queue(self, link);
        client_end_job(self, job, TR_ECANCELLED, CURLE_OK);
    }
}

/* ---- the actor ----------------------------------------------------------------------------- */

static void client_refuse(struct tr_context *ctx, struct client_job *job, int status)
{
    client_count_end(job, tr_now_ns(ctx), status);
    (void)tr_reply(ctx, status, NULL, 0);
    http_client_job_destroy(job);
}

static bool client_is_full(const struct client_actor *self)
{
    return self->active_count == self->client->concurrent_max &&
           self->queue_count == self->client->queue_max;
}

/* Start the job's timer and take the duty to answer. */
static int client_accept(struct tr_context *ctx, struct client_job *job, uint64_t left_ns)
{
    int rc = tr_after(ctx, left_ns, TAG_DEADLINE, &job->timer_id);

    if (rc < 0)
        return rc;
    job->reply = tr_reply_take(ctx);
    if (job->reply.reply == NULL) {
        tr_timer_stop(ctx, job->timer_id);
        return TR_ENOMEM;
    }
    return 0;
}

/* Put the job into the queue, or refuse it. */
static void client_take_job(
    struct client_actor *self, struct tr_context *ctx, struct client_job *job)
{
    uint64_t inherited_ns = tr_deadline_ns(ctx), left_ns;
    int rc;

    if (inherited_ns != 0 && inherited_ns < job->deadline_ns)
        job->deadline_ns = inherited_ns;
    left_ns = client_time_left_ns(job, tr_now_ns(ctx));
    metric_add(&metrics[REQUESTS], 1);
    rc = self->multi == NULL     ? TR_ECLOSED
         : left_ns == 0          ? TR_ETIMEOUT
         : client_is_full(self)  ? TR_EFULL
         : job_is_cancelled(job) ? TR_ECANCELLED
                                 : client_accept(ctx, job, left_ns);
    if (rc < 0) {
        client_refuse(ctx, job, rc);
        return;
    }
    *self->queue_end = job;
    self->queue_end = &job->next;
    self->queue_count++;
    metric_add(&metrics[QUEUED], 1);
}

static enum tr_next client_handle(void *state, struct tr_context *ctx, void *memory)
{
    struct client_job *job = ((struct client_message *)memory)->job;
    struct client_actor *self = state;

    client_enter(self, ctx);
    if (job != NULL)
        client_take_job(self, ctx, job);
    else
        client_end_cancelled(self);
    if (self->multi != NULL)
        client_settle(self);
    self->ctx = NULL;
    return TR_GO;
}

static enum tr_next client_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct client_actor *self = state;

    if (self->multi == NULL)
        return TR_GO;
    client_enter(self, ctx);
    if (event->kind == TR_EVENT_FD) {
        client_on_ready(self, event);
    } else if (event->kind == TR_EVENT_TIMER && event->tag == TAG_DEADLINE) {
        client_on_deadline(self, event->id);
    } else if (event->kind == TR_EVENT_TIMER && event->id == self->timer_id) {
        self->timer_id = 0;
        self->is_due = true;
    }
    client_settle(self);
    self->ctx = NULL;
    return TR_GO;
}

static int client_start(void *state, struct tr_context *ctx)
{
    struct client_actor *self = state;

    (void)ctx;
    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    self->queue_end = &self->queue;
    curl_multi_setopt(self->multi, CURLMOPT_SOCKETFUNCTION, client_on_socket);
    curl_multi_setopt(self->multi, CURLMOPT_SOCKETDATA, self);
    curl_multi_setopt(self->multi, CURLMOPT_TIMERFUNCTION, client_on_timer);
    curl_multi_setopt(self->multi, CURLMOPT_TIMERDATA, self);
    curl_multi_setopt(self->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
    /* Idle connections that are kept for the next request. */
    curl_multi_setopt(self->multi, CURLMOPT_MAXCONNECTS, (long)self->client->concurrent_max);
    return http_client_kept_init(self);
}

static void client_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    struct client_actor *self = state;

    (void)why;
    if (self->multi == NULL)
        return;
    self->ctx = ctx;
    client_end_all(self, TR_ECLOSED);
    curl_multi_cleanup(self->multi);
    self->multi = NULL;
    self->ctx = NULL;
}

/* After `stop` only the tables of sockets are left. After a kill `stop` did not run: the runtime has
 * removed the watches and answered the callers. */
static void client_finish(void *state)
{
    struct client_actor *self = state;

    if (self->multi != NULL) {
        curl_multi_setopt(self->multi, CURLMOPT_SOCKETFUNCTION, NULL);
        curl_multi_setopt(self->multi, CURLMOPT_TIMERFUNCTION, NULL);
        while (self->active != NULL) {
            struct client_job *job = self->active;

            client_leave_active(self, job);
            http_client_job_destroy(job);
        }
        while (self->queue != NULL) {
            struct client_job *job = self->queue;

            client_leave_queue(self, &self->queue);
            http_client_job_destroy(job);
        }
        curl_multi_cleanup(self->multi);
        self->multi = NULL;
    }
    http_client_kept_fini(self);
    base_free(self->sockets);
    self->sockets = NULL;
}

static int client_reset(void *state, enum tr_why why)
{
    struct client_actor *self = state;
    const struct http_client *client = self->client;

    (void)why;
    client_finish(self);
    *self = (struct client_actor){ .client = client, .multi = curl_multi_init() };
    return self->multi == NULL ? TR_ENOMEM : 0;
}

static void client_message_drop(void *memory)
{
    http_client_job_destroy(((struct client_message *)memory)->job);
}

static void client_show(const void *state, char *text, size_t size)
{
    const struct client_actor *self = state;

    snprintf(text, size, "%u active, %u queued, %u sockets", self->active_count, self->queue_count,
        self->socket_count);
}

const struct tr_type http_client_type = {
    .name = "http_client",
    .message_size = sizeof(struct client_message),
    .state_size = sizeof(struct client_actor),
    .start = client_start,
    .handle = client_handle,
    .event = client_event,
    .stop = client_stop,
    .finish = client_finish,
    .reset = client_reset,
    .message_drop = client_message_drop,
    .show = client_show,
};
