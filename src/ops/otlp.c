/* SPDX-License-Identifier: Apache-2.0 */
/* otlp.c: one actor collects spans. It sends a batch when batch_max spans are there or interval_ns has
 * passed. One batch at a time is on its way; meanwhile up to queue_max spans wait. */
#include "ops/otlp.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "json/json_write.h"
#include "ops/flags.h"
#include "support/log.h"
#include "support/metric.h"

enum {
    TAG_INTERVAL = 1,
    TAG_POSTED = 2,
    SPAN_BYTES_MAX = 1024, /* encoded */
    STOP_MS = 1000,
};

struct otlp {
    tr_sender sender;
    struct tr_done *done;
    _Atomic uint32_t sample; /* hundredths of a percent */
};

struct exporter {
    struct otlp_options options; /* texts owned */
    struct otlp_span *spans;     /* queue_max of them, oldest first */
    uint32_t count;
    uint32_t in_flight; /* spans of the batch on its way */
    bool is_stopping;
};

static struct metric metrics[] = {
    { .name = "troupe_trace_exported_total", .help = "Spans that the collector accepted" },
    { .name = "troupe_trace_dropped_total",
        .labels = "reason=\"full\"",
        .help = "Spans that were dropped" },
    { .name = "troupe_trace_dropped_total",
        .labels = "reason=\"refused\"",
        .help = "Spans that were dropped" },
};
enum { EXPORTED, DROPPED_FULL, DROPPED_REFUSED };

/* Switches the export off without a reload. */
static struct flag flags[] = {
    { .name = "trace-export",
        .help = "Export spans to the collector, by trace id",
        .initial = FLAG_ALL },
};

/* ---- encoding (opentelemetry-proto, trace/v1, JSON mapping) --------------------------------- */

static void otlp_put_text(struct json_writer *writer, const char *key, const char *text)
{
    json_put_object(writer, NULL);
    json_put_text(writer, "key", key);
    json_put_object(writer, "value");
    json_put_text(writer, "stringValue", text);
    json_put_end(writer);
    json_put_end(writer);
}

static void otlp_put_int(struct json_writer *writer, const char *key, int64_t number)
{
    char digits[24];

    json_put_object(writer, NULL);
    json_put_text(writer, "key", key);
    json_put_object(writer, "value");
    /* 64-bit integers are strings in the JSON mapping of protobuf. */
    snprintf(digits, sizeof digits, "%lld", (long long)number);
    json_put_text(writer, "intValue", digits);
    json_put_end(writer);
    json_put_end(writer);
}

static void otlp_put_time(struct json_writer *writer, const char *key, uint64_t wall_ns)
{
    char digits[24];

    snprintf(digits, sizeof digits, "%llu", (unsigned long long)wall_ns);
    json_put_text(writer, key, digits);
}

static void otlp_put_span(struct json_writer *writer, const struct otlp_span *span)
{
    char name[sizeof span->method + sizeof span->route + 1];

    snprintf(name, sizeof name, "%s %s", span->method, span->route);
    json_put_object(writer, NULL);
    json_put_text(writer, "traceId", span->trace_id);
    json_put_text(writer, "spanId", span->span_id);
    if (span->parent_id[0] != '\0')
        json_put_text(writer, "parentSpanId", span->parent_id);
    json_put_text(writer, "name", name);
    json_put_int(writer, "kind", 2); /* SPAN_KIND_SERVER */
    otlp_put_time(writer, "startTimeUnixNano", span->begin_wall_ns);
    otlp_put_time(writer, "endTimeUnixNano", span->end_wall_ns);
    json_put_array(writer, "attributes");
    otlp_put_text(writer, "http.request.method", span->method);
    otlp_put_text(writer, "http.route", span->route);
    otlp_put_int(writer, "http.response.status_code", span->status);
    json_put_end(writer);
    json_put_object(writer, "status");
    if (span->status >= 500)
        json_put_int(writer, "code", 2); /* STATUS_CODE_ERROR; a 4xx is the client's error */
    json_put_end(writer);
    json_put_end(writer);
}

void otlp_encode(struct buffer *out, const struct otlp_span *spans, size_t count,
    const char *service_version, const char *instance)
{
    struct json_writer writer = json_writer(out);

    json_put_object(&writer, NULL);
    json_put_array(&writer, "resourceSpans");
    json_put_object(&writer, NULL);
    json_put_object(&writer, "resource");
    json_put_array(&writer, "attributes");
    otlp_put_text(&writer, "service.name", "troupe");
    otlp_put_text(&writer, "service.version", service_version);
    otlp_put_text(&writer, "service.instance.id", instance);
    json_put_end(&writer);
    json_put_end(&writer);
    json_put_array(&writer, "scopeSpans");
    json_put_object(&writer, NULL);
    json_put_object(&writer, "scope");
    json_put_text(&writer, "name", "troupe.http");
    json_put_end(&writer);
    json_put_array(&writer, "spans");
    for (size_t i = 0; i < count; i++)
        otlp_put_span(&writer, &spans[i]);
    for (int level = 0; level < 6; level++)
        json_put_end(&writer);
}

static bool is_hex(struct span text)
{
    bool is_zero = true;

    for (size_t i = 0; i < text.size; i++) {
        char c = text.at[i];

        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
            return false;
        is_zero &= c == '0';
    }
    return !is_zero; /* W3C Trace Context 3.2.2.3: an id of zeroes is invalid */
}

bool otlp_ids_of_traceparent(struct span header, struct otlp_span *span)
{
    struct span trace;
    struct span parent;

    if (header.size != 55 || header.at[2] != '-' || header.at[35] != '-' || header.at[52] != '-')
        return false;
    trace = (struct span){ header.at + 3, 32 };
    parent = (struct span){ header.at + 36, 16 };
    if (!is_hex(trace) || !is_hex(parent))
        return false;
    memcpy(span->trace_id, trace.at, 32);
    span->trace_id[32] = '\0';
    memcpy(span->parent_id, parent.at, 16);
    span->parent_id[16] = '\0';
    return true;
}

/* ---- the actor ------------------------------------------------------------------------------- */

static void remove_first(struct exporter *exporter, uint32_t count)
{
    tr_assert(count <= exporter->count);
    exporter->count -= count;
    memmove(exporter->spans, exporter->spans + count, exporter->count * sizeof exporter->spans[0]);
}

static void send_batch(struct exporter *exporter, struct tr_context *ctx)
{
    static const char *const headers[] = { "Content-Type: application/json", NULL };
    uint32_t count = exporter->count < exporter->options.batch_max ? exporter->count
                                                                   : exporter->options.batch_max;
    struct buffer body = { .size_max = (size_t)(count + 1) * SPAN_BYTES_MAX };
    int rc;

    if (count == 0 || exporter->in_flight != 0)
        return;
    otlp_encode(
        &body, exporter->spans, count, exporter->options.version, exporter->options.instance);
    rc = body.failed;
    if (rc == 0)
        rc = exporter->options.post(exporter->options.post_data, ctx,
            &(struct http_client_request){ .method = "POST",
                .url = exporter->options.url,
                .headers = headers,
                .body = { body.bytes, body.size },
                .may_repeat = true }, /* a span has an id */
            TAG_POSTED);
    if (rc == 0)
        exporter->in_flight = count;
    else
        metric_add(&metrics[DROPPED_REFUSED], count);
    remove_first(exporter, count);
    buffer_free(&body);
}

static void on_posted(struct exporter *exporter, const struct tr_event *event)
{
    const struct http_client_answer *answer = event->value;
    uint32_t status = event->status == 0 && event->size >= sizeof *answer ? answer->status : 0;
    bool was_taken = status >= 200 && status < 300;

    tr_assert(exporter->in_flight > 0);
    metric_add(&metrics[was_taken ? EXPORTED : DROPPED_REFUSED], exporter->in_flight);
    if (!was_taken)
        LOG(LOG_WARN, "trace", "The collector did not accept a batch of spans.",
            LOG_INT("spans", exporter->in_flight), LOG_INT("status", status),
            LOG_TEXT("why", event->status == 0 ? "HTTP status" : tr_error_text(event->status)));
    exporter->in_flight = 0;
}

static int exporter_start(void *self, struct tr_context *ctx)
{
    const struct exporter *exporter = self;

    return tr_every(ctx, exporter->options.interval_ns, TAG_INTERVAL, NULL);
}

static enum tr_next exporter_handle(void *self, struct tr_context *ctx, void *message)
{
    struct exporter *exporter = self;

    if (exporter->count == exporter->options.queue_max) {
        metric_add(&metrics[DROPPED_FULL], 1);
        return TR_GO;
    }
    memcpy(&exporter->spans[exporter->count++], message, sizeof(struct otlp_span));
    if (exporter->count >= exporter->options.batch_max)
        send_batch(exporter, ctx);
    return TR_GO;
}

static enum tr_next exporter_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct exporter *exporter = self;

    if (event->tag == TAG_POSTED)
        on_posted(exporter, event);
    /* A full batch follows at once; a partial one waits for the interval. */
    if (event->tag == TAG_INTERVAL || exporter->is_stopping ||
        exporter->count >= exporter->options.batch_max)
        send_batch(exporter, ctx);
    return TR_GO;
}

static void exporter_stop(void *self, struct tr_context *ctx, enum tr_why why)
{
    struct exporter *exporter = self;

    (void)why;
    exporter->is_stopping = true;
    send_batch(exporter, ctx);
}

static void exporter_finish(void *self)
{
    struct exporter *exporter = self;

    metric_add(&metrics[DROPPED_REFUSED], exporter->count + exporter->in_flight);
    base_free(exporter->spans);
    base_free((char *)(uintptr_t)exporter->options.url);
    base_free((char *)(uintptr_t)exporter->options.version);
    base_free((char *)(uintptr_t)exporter->options.instance);
}

/* Spans that wait are kept; the batch on its way counts as refused. */
static int exporter_reset(void *self, enum tr_why why)
{
    struct exporter *exporter = self;

    (void)why;
    metric_add(&metrics[DROPPED_REFUSED], exporter->in_flight);
    exporter->in_flight = 0;
    exporter->is_stopping = false;
    return 0;
}

static const struct tr_type exporter_type = {
    .name = "trace-exporter",
    .message_size = sizeof(struct otlp_span),
    .state_size = sizeof(struct exporter),
    .start = exporter_start,
    .handle = exporter_handle,
    .event = exporter_event,
    .stop = exporter_stop,
    .finish = exporter_finish,
    .reset = exporter_reset,
};

/* ---- the public part -------------------------------------------------------------------------- */

void otlp_register(void)
{
    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    flags_register(flags, sizeof flags / sizeof flags[0]);
}

int otlp_start(struct tr_system *system, const struct otlp_options *options, struct otlp **ret_otlp)
{
    struct exporter exporter = { .options = *options };
    struct otlp *otlp = base_calloc(sizeof *otlp);
    int rc = TR_ENOMEM;

    tr_assert(options->queue_max > 0);
    tr_assert(options->batch_max > 0);
    tr_assert(options->post != NULL);
    otlp_register();
    exporter.spans = base_alloc(options->queue_max * sizeof exporter.spans[0]);
    exporter.options.url = base_strdup(options->url);
    exporter.options.version = base_strdup(options->version);
    exporter.options.instance = base_strdup(options->instance);
    if (otlp != NULL && exporter.spans != NULL && exporter.options.url != NULL &&
        exporter.options.version != NULL && exporter.options.instance != NULL)
        rc = tr_spawn(system, &exporter_type, &exporter,
            &(struct tr_spawn_options){ .name = "trace-exporter",
                .owner = "serve",
                .box = { .capacity = TR_CAPACITY_DEFAULT, .full = TR_FULL_FAIL },
                .grace_ns = TR_MILLISECONDS(STOP_MS),
                .ret_done = otlp == NULL ? NULL : &otlp->done,
                .supervisor = options->supervisor },
            &otlp->sender);
    if (rc != 0) {
        exporter_finish(&exporter);
        base_free(otlp);
        return rc;
    }
    atomic_store(&otlp->sample, FLAG_ALL);
    *ret_otlp = otlp;
    return 0;
}

void otlp_stop(struct otlp **otlp)
{
    if (*otlp == NULL)
        return;
    tr_sender_drop(&(*otlp)->sender);
    /* Wait longer than the actor's grace: after that the runtime kills it. */
    if (tr_done_wait(&(*otlp)->done, NULL, NULL, TR_MILLISECONDS(3 * STOP_MS)) == TR_ETIMEOUT)
        tr_done_drop(&(*otlp)->done);
    base_free(*otlp);
    *otlp = NULL;
}

void otlp_set_sample(struct otlp *otlp, uint32_t parts)
{
    tr_assert(parts <= FLAG_ALL);
    if (otlp != NULL)
        atomic_store_explicit(&otlp->sample, parts, memory_order_relaxed);
}

bool otlp_is_sampled(const struct otlp *otlp, const char *trace_id)
{
    static const struct flag by_trace = { .name = "trace" };
    uint32_t parts = atomic_load_explicit(&otlp->sample, memory_order_relaxed);

    return flag_place(&by_trace, trace_id, strlen(trace_id)) < parts &&
           flag_is_on(&flags[0], trace_id, strlen(trace_id));
}

void otlp_record(struct otlp *otlp, const struct otlp_span *span)
{
    if (otlp == NULL || !otlp_is_sampled(otlp, span->trace_id))
        return;
    if (tr_try_tell(otlp->sender, span, sizeof *span) != 0)
        metric_add(&metrics[DROPPED_FULL], 1);
}

static const char *method_text(enum http_method method)
{
    static const char *const texts[] = { "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE",
        "OPTIONS" };

    return (size_t)method < sizeof texts / sizeof texts[0] ? texts[method] : "_OTHER";
}

void otlp_record_request(
    struct otlp *otlp, const struct http_request *request, unsigned status, uint64_t took_ns)
{
    const struct tr_env *env = tr_env_real();
    const struct http_route *route = http_route(request);
    struct otlp_span span = { .status = status };
    struct otlp_span parent = { .status = 0 };

    /* The traceparent that the server passes on names this request's span as the parent. */
    if (otlp == NULL || !otlp_ids_of_traceparent(http_traceparent(request), &span) ||
        !otlp_is_sampled(otlp, span.trace_id))
        return;
    memcpy(span.span_id, span.parent_id, sizeof span.span_id);
    if (otlp_ids_of_traceparent(http_header(request, "traceparent"), &parent))
        memcpy(span.parent_id, parent.parent_id, sizeof span.parent_id);
    else
        span.parent_id[0] = '\0';
    snprintf(span.method, sizeof span.method, "%s", method_text(http_method(request)));
    snprintf(span.route, sizeof span.route, "%s",
        route == NULL          ? "none"
        : route->label != NULL ? route->label
                               : route->path);
    span.end_wall_ns = env->wall_ns(env->data);
    span.begin_wall_ns = span.end_wall_ns - took_ns;
    otlp_record(otlp, &span);
}
