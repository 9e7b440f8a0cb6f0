/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "check.h"
#include "json/json.h"
#include "ops/flags.h"
#include "ops/otlp.h"
#include "support/metric.h"

static const struct otlp_span example = {
    .trace_id = "0af7651916cd43dd8448eb211c80319c",
    .span_id = "b7ad6b7169203331",
    .parent_id = "00f067aa0ba902b7",
    .method = "GET",
    .route = "/xrpc/_health",
    .status = 200,
    .begin_wall_ns = UINT64_C(1700000000000000001),
    .end_wall_ns = UINT64_C(1700000000000500000),
};

TEST(otlp, body_is_what_the_protocol_says)
{
    struct buffer out = { 0 };

    otlp_encode(&out, &example, 1, "1.2.3", "127.0.0.1:80");
    buffer_append(&out, "", 1);
    CHECK_EQ_STR(out.bytes,
        "{\"resourceSpans\":[{\"resource\":{\"attributes\":["
        "{\"key\":\"service.name\",\"value\":{\"stringValue\":\"troupe\"}},"
        "{\"key\":\"service.version\",\"value\":{\"stringValue\":\"1.2.3\"}},"
        "{\"key\":\"service.instance.id\",\"value\":{\"stringValue\":\"127.0.0.1:80\"}}]},"
        "\"scopeSpans\":[{\"scope\":{\"name\":\"troupe.http\"},\"spans\":["
        "{\"traceId\":\"0af7651916cd43dd8448eb211c80319c\",\"spanId\":\"b7ad6b7169203331\","
        "\"parentSpanId\":\"00f067aa0ba902b7\",\"name\":\"GET /xrpc/_health\",\"kind\":2,"
        "\"startTimeUnixNano\":\"1700000000000000001\",\"endTimeUnixNano\":\"1700000000000500000\","
        "\"attributes\":[{\"key\":\"http.request.method\",\"value\":{\"stringValue\":\"GET\"}},"
        "{\"key\":\"http.route\",\"value\":{\"stringValue\":\"/xrpc/_health\"}},"
        "{\"key\":\"http.response.status_code\",\"value\":{\"intValue\":\"200\"}}],"
        "\"status\":{}}]}]}]}");
    buffer_free(&out);
}

TEST(otlp, server_errors_are_marked_and_roots_have_no_parent)
{
    struct otlp_span spans[2] = { example, example };
    struct buffer out = { 0 };
    struct json_doc doc = { 0 };
    const struct json *list;
    int64_t code;

    spans[0].status = 503;
    spans[0].parent_id[0] = '\0';
    otlp_encode(&out, spans, 2, "1", "x");
    CHECK_EQ_INT(json_parse_copy(&doc, (struct span){ out.bytes, out.size }, 0), 0);
    list = json_get(
        json_at(json_get(json_at(json_get(json_root(&doc), "resourceSpans"), 0), "scopeSpans"), 0),
        "spans");
    CHECK_EQ_INT(json_count(list), 2);
    CHECK(json_int(json_get(json_get(json_at(list, 0), "status"), "code"), &code) && code == 2);
    CHECK(json_get(json_at(list, 0), "parentSpanId") == NULL);
    CHECK(json_get(json_get(json_at(list, 1), "status"), "code") == NULL);
    json_doc_free(&doc);
    buffer_free(&out);
}

TEST(otlp, traceparent_is_taken_apart_or_refused)
{
    static const char *const bad[] = { "", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
        "00-0af7651916cd43dd8448eb211c80319C-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" };
    struct otlp_span span = { 0 };

    CHECK(otlp_ids_of_traceparent(
        SPAN("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), &span));
    CHECK_EQ_STR(span.trace_id, "0af7651916cd43dd8448eb211c80319c");
    CHECK_EQ_STR(span.parent_id, "b7ad6b7169203331");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_MSG(!otlp_ids_of_traceparent(span_of(bad[i]), &span), "%s", bad[i]);
}

/* ---- a collector: an actor that is asked with the number of spans in a batch ---------------- */

enum { BATCHES_MAX = 64 };
struct collector {
    uint32_t answers; /* how many it gives; later asks wait for ever */
};
static _Atomic uint32_t batches;
static uint32_t batch_sizes[BATCHES_MAX];
static uint32_t collector_status = 200;

static enum tr_next collect(void *self, struct tr_context *ctx, void *message)
{
    struct http_client_answer answer = { .status = collector_status };

    (void)self;
    memcpy(&batch_sizes[batches], message, sizeof(uint32_t));
    batches++;
    tr_reply(ctx, 0, &answer, sizeof answer);
    return TR_GO;
}
static const struct tr_type collector_type = { .name = "collector",
    .message_size = sizeof(uint32_t),
    .state_size = sizeof(struct collector),
    .handle = collect };

static int post(
    void *data, struct tr_context *ctx, const struct http_client_request *request, uint32_t tag)
{
    struct json_doc doc = { 0 };
    uint32_t count;

    CHECK_EQ_STR(request->url, "http://c/v1/traces");
    CHECK_EQ_STR(request->method, "POST");
    CHECK_EQ_INT(json_parse_copy(&doc, request->body, JSON_UNIQUE_KEYS), 0);
    count = (uint32_t)json_count(json_get(
        json_at(json_get(json_at(json_get(json_root(&doc), "resourceSpans"), 0), "scopeSpans"), 0),
        "spans"));
    json_doc_free(&doc);
    return tr_ask(ctx, *(const tr_sender *)data, &count, sizeof count,
        &(struct tr_ask_options){ .tag = tag });
}

static int64_t metric_of(const char *name, const char *labels)
{
    for (struct metric *metric = metric_first(); metric != NULL; metric = metric->next)
        if (strcmp(metric->name, name) == 0 &&
            (labels == NULL || strcmp(metric->labels, labels) == 0))
            return metric_get(metric);
    check_fail(__FILE__, __LINE__, "there is no metric %s", name);
}

static struct tr_system *system_;
static tr_sender collector;
static struct otlp *otlp;

static void begin(uint32_t batch_max, uint64_t interval_ns)
{
    struct collector state = { 0 };

    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .driven = true }, &system_), 0);
    CHECK_EQ_INT(tr_spawn(system_, &collector_type, &state, NULL, &collector), 0);
    CHECK_EQ_INT(otlp_start(system_,
                     &(struct otlp_options){ .url = "http://c/v1/traces",
                         .post = post,
                         .post_data = &collector,
                         .queue_max = 8,
                         .batch_max = batch_max,
                         .interval_ns = interval_ns,
                         .version = "1",
                         .instance = "x" },
                     &otlp),
        0);
}

static void run(void)
{
    while (tr_system_step(system_, 100) > 0)
        ;
}

static void end(void)
{
    otlp_stop(&otlp);
    tr_sender_drop(&collector);
    tr_system_destroy(&system_);
}

TEST(otlp, full_batch_leaves_at_once)
{
    begin(3, TR_SECONDS(60));
    for (int i = 0; i < 7; i++)
        otlp_record(otlp, &example);
    run();
    CHECK_EQ_INT(batches, 2);
    CHECK_EQ_INT(batch_sizes[0], 3);
    CHECK_EQ_INT(batch_sizes[1], 3);
    CHECK_EQ_INT(metric_of("troupe_trace_exported_total", NULL), 6);
    end();
    CHECK_EQ_INT(batches, 3); /* stopping sends the rest */
    CHECK_EQ_INT(batch_sizes[2], 1);
}

TEST(otlp, refused_batch_is_counted_not_kept)
{
    collector_status = 503;
    begin(2, TR_SECONDS(60));
    otlp_record(otlp, &example);
    otlp_record(otlp, &example);
    run();
    CHECK_EQ_INT(metric_of("troupe_trace_exported_total", NULL), 0);
    CHECK_EQ_INT(metric_of("troupe_trace_dropped_total", "reason=\"refused\""), 2);
    end();
}

TEST(otlp, spans_past_the_queue_are_dropped_and_counted)
{
    begin(8, TR_SECONDS(60));
    /* One batch may be under way while the next gathers; the box takes the rest. */
    for (int i = 0; i < 1000; i++)
        otlp_record(otlp, &example);
    CHECK_EQ_INT(
        metric_of("troupe_trace_dropped_total", "reason=\"full\""), 1000 - TR_CAPACITY_DEFAULT);
    run();
    end();
    CHECK_EQ_INT(metric_of("troupe_trace_exported_total", NULL) +
                     metric_of("troupe_trace_dropped_total", "reason=\"full\"") +
                     metric_of("troupe_trace_dropped_total", "reason=\"refused\""),
        1000);
}

TEST(otlp, sample_and_flag_decide_by_trace)
{
    char trace_id[33];
    int kept = 0;

    begin(8, TR_SECONDS(60));
    otlp_set_sample(otlp, 2500);
    for (int i = 0; i < 4000; i++) {
        snprintf(trace_id, sizeof trace_id, "%032x", i);
        kept += otlp_is_sampled(otlp, trace_id);
    }
    CHECK_MSG(kept > 850 && kept < 1150, "%d", kept);
    CHECK_EQ_INT(flags_set("trace-export", 0), 0);
    CHECK(!otlp_is_sampled(otlp, trace_id));
    CHECK_EQ_INT(flags_rollback("trace-export"), 0);
    otlp_set_sample(otlp, FLAG_ALL);
    CHECK(otlp_is_sampled(otlp, trace_id));
    end();
}

TEST(otlp, every_allocation_of_start_may_fail)
{
    uint64_t countdown = 0;
    uint64_t calls;
    struct tr_system *system;
    int rc;

    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .driven = true }, &system), 0);
    do {
        base_fault_countdown(++countdown, 1);
        rc = otlp_start(system,
            &(struct otlp_options){ .url = "u",
                .post = post,
                .queue_max = 8,
                .batch_max = 2,
                .interval_ns = TR_SECONDS(1),
                .version = "1",
                .instance = "x" },
            &otlp);
        calls = base_fault_countdown(0, 0);
        CHECK((rc == 0) == (calls < countdown));
        if (rc == 0)
            otlp_stop(&otlp);
    } while (rc != 0);
    CHECK(countdown > 5);
    tr_system_destroy(&system);
}
