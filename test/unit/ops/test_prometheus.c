/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <troupe/troupe.h>

#include "base/alloc.h"
#include "check.h"
#include "ops/flags.h"
#include "ops/prometheus.h"
#include "support/log.h"
#include "support/metric.h"

static struct metric_histogram seconds;
static struct metric_histogram bytes;
static struct metric first[] = {
    { .name = "troupe_z_total", .labels = "reason=\"b\"", .help = "Things, with \\ and\nlines" },
    { .name = "troupe_y_seconds", .help = "Y", .kind = METRIC_HISTOGRAM, .histogram = &seconds },
    { .name = "troupe_x_bytes",
        .labels = "way=\"in\"",
        .help = "X",
        .kind = METRIC_HISTOGRAM,
        .histogram = &bytes },
};
static struct metric second[] = {
    { .name = "troupe_w", .help = "W", .kind = METRIC_GAUGE, .value = -5 },
    { .name = "troupe_z_total", .labels = "reason=\"a\"", .help = "Things, with \\ and\nlines" },
};
static struct flag flags[] = { { .name = "quick", .help = "Q", .initial = 25 } };

static struct buffer out;

static enum tr_next count_up(void *self, struct tr_context *ctx, void *message)
{
    (void)self;
    (void)ctx;
    (void)message;
    return TR_GO;
}
static const struct tr_type counter_type = {
    .name = "counter \"quoted\"", .message_size = 4, .state_size = 4, .handle = count_up
};

static const char *render(struct tr_system *system)
{
    metric_register(first, 3);
    metric_register(second, 2);
    flags_register(flags, 1);
    buffer_clear(&out);
    prometheus_render(&out, system, "1.2.3");
    CHECK_EQ_INT(out.failed, 0);
    CHECK_EQ_INT(buffer_append(&out, "", 1), 0);
    return out.bytes;
}

static void check_has(const char *text)
{
    CHECK_MSG(strstr(out.bytes, text) != NULL, "it does not say: %s", text);
}

/* A system with actors of one type that have something to show. */
static struct tr_system *make_system(tr_sender *ret_sender)
{
    struct tr_system *system;
    int zero = 0;

    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .workers = 2 }, &system), 0);
    CHECK_EQ_INT(tr_spawn(system, &counter_type, &zero, NULL, ret_sender), 0);
    for (int i = 0; i < 100; i++)
        CHECK_EQ_INT(tr_tell_wait(*ret_sender, &i, sizeof i, 0), 0);
    return system;
}

TEST(prometheus, families_stand_together_with_help_once)
{
    render(NULL);
    check_has("# HELP troupe_z_total Things, with \\\\ and\\nlines\n# TYPE troupe_z_total counter\n"
              "troupe_z_total{reason=\"a\"} 0\ntroupe_z_total{reason=\"b\"} 0\n");
    check_has("# TYPE troupe_w gauge\ntroupe_w -5\n");
    check_has("troupe_build_info{version=\"1.2.3\",");
    check_has("troupe_flag_ratio{flag=\"quick\"} 0.0025\n");
    check_has("process_resident_memory_bytes ");
    buffer_free(&out);
}

TEST(prometheus, histograms_count_up_in_seconds_and_bytes)
{
    metric_observe(&first[1], 1000); /* up to 1,024 ns */
    metric_observe(&first[1], 1025); /* the next */
    metric_observe(&first[1], UINT64_C(1) << 60);
    metric_observe(&first[2], 4096);
    render(NULL);
    check_has("troupe_y_seconds_bucket{le=\"0.000001024\"} 1\n"
              "troupe_y_seconds_bucket{le=\"0.000002048\"} 2\n");
    check_has(
        "troupe_y_seconds_bucket{le=\"+Inf\"} 3\ntroupe_y_seconds_sum 1152921504.606849001\n");
    check_has("troupe_y_seconds_count 3\n");
    check_has("troupe_x_bytes_bucket{way=\"in\",le=\"2048\"} 0\n"
              "troupe_x_bytes_bucket{way=\"in\",le=\"4096\"} 1\n");
    check_has("troupe_x_bytes_sum{way=\"in\"} 4096\ntroupe_x_bytes_count{way=\"in\"} 1\n");
    buffer_free(&out);
}

TEST(prometheus, actors_are_shown_by_type)
{
    tr_sender sender;
    struct tr_system *system = make_system(&sender);

    tr_system_join(system, TR_MILLISECONDS(1)); /* times out: a sender is held */
    render(system);
    check_has("troupe_actor_live{type=\"counter \\\"quoted\\\"\"} 1\n");
    check_has("troupe_messages_sent_total 100\n");
    check_has("troupe_dead_letters_total{reason=\"");
    check_has("# TYPE troupe_actor_handle_seconds histogram\n");
    tr_sender_drop(&sender);
    tr_system_destroy(&system);
    buffer_free(&out);
}

/* Runs `promtool check metrics` on the text; its words are shown if it complains. */
static int promtool(const char *text, size_t size)
{
    int fds[2];
    int status;
    pid_t child;

    CHECK(pipe(fds) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dup2(fds[0], STDIN_FILENO);
        close(fds[0]);
        close(fds[1]);
        execlp("promtool", "promtool", "check", "metrics", (char *)NULL);
        _exit(127);
    }
    close(fds[0]);
    while (size > 0) {
        ssize_t written = write(fds[1], text, size);

        if (written <= 0)
            break;
        text += written;
        size -= (size_t)written;
    }
    close(fds[1]);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

TEST(prometheus, promtool_has_nothing_to_say)
{
    tr_sender sender;
    struct tr_system *system = make_system(&sender);
    int status;

    log_setup(2, LOG_LOGFMT, LOG_INFO); /* its metrics too */
    render(system);
    tr_sender_drop(&sender);
    tr_system_destroy(&system);
    status = promtool(out.bytes, out.size - 1);
    if (status == 127)
        SKIP("promtool is not installed");
    CHECK_EQ_INT(status, 0);
    /* And it would have said something. */
    CHECK(promtool("troupe_no_help 1\n", 17) != 0);
    buffer_free(&out);
}

TEST(prometheus, every_allocation_may_fail)
{
    uint64_t countdown = 0;
    uint64_t calls;

    metric_register(first, 3);
    do {
        buffer_free(&out);
        base_fault_countdown(++countdown, 1);
        prometheus_render(&out, NULL, "1");
        calls = base_fault_countdown(0, 0);
        CHECK_EQ_INT(out.failed, calls >= countdown ? TR_ENOMEM : 0);
    } while (calls >= countdown);
    buffer_free(&out);
}
