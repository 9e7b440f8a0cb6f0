/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of the log: their format, no injection by values, and a reader that hangs, which costs
 * lines but never time. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <troupe/error.h>

#include "check.h"
#include "support/log.h"
#include "support/metric.h"

static char said[1 << 20];

/* Send the log to a file; `said` is its content afterwards. */
static int file_fd = -1;

static void log_to_file(enum log_format format, enum log_level level)
{
    char path[] = "/tmp/test-log-XXXXXX";

    file_fd = mkstemp(path);
    CHECK(file_fd >= 0);
    unlink(path);
    log_setup(file_fd, format, level);
}

static const char *what_was_said(void)
{
    ssize_t got = pread(file_fd, said, sizeof said - 1, 0);

    CHECK(got >= 0);
    said[got] = '\0';
    return said;
}

/* Return the line after the time, whose form is checked. */
static const char *line_after_time(const char *prefix)
{
    const char *line = what_was_said();
    size_t size = strlen(prefix);

    CHECK_MSG(strncmp(line, prefix, size) == 0, "begins with %.30s", line);
    for (size_t i = 0; i < 24; i++) {
        char expected = "dddd-dd-ddTdd:dd:dd.dddZ"[i];
        char is = line[size + i];

        CHECK_MSG(expected == 'd' ? is >= '0' && is <= '9' : is == expected, "time is %.24s",
            line + size);
    }
    return line + size + 24;
}

static int64_t metric_named(const char *name)
{
    for (struct metric *metric = metric_first(); metric != NULL; metric = metric->next)
        if (strcmp(metric->name, name) == 0 && metric->labels == NULL)
            return metric_get(metric);
    check_fail(__FILE__, __LINE__, "there is no metric %s", name);
}

TEST(log, logfmt_line_has_time_level_module_event_and_fields)
{
    log_to_file(LOG_LOGFMT, LOG_INFO);
    LOG(LOG_WARN, "sql", "batch replayed", LOG_INT("units", -3), LOG_TEXT("why", "no space left"),
        LOG_TEXT("code", "E5"));
    CHECK_EQ_STR(line_after_time("time="), " level=warn module=sql event=\"batch replayed\" "
                                           "units=-3 why=\"no space left\" code=E5\n");
}

TEST(log, json_line_is_an_object)
{
    log_to_file(LOG_JSON, LOG_INFO);
    LOG(LOG_ERROR, "http", "refused", LOG_INT("status", 400), LOG_TEXT("why", "a \"b\"\\"));
    CHECK_EQ_STR(line_after_time("{\"time\":\""),
        "\",\"level\":\"error\",\"module\":\"http\",\"event\":\"refused\","
        "\"status\":400,\"why\":\"a \\\"b\\\"\\\\\"}\n");
}

TEST(log, value_cannot_forge_a_line_or_steer_a_terminal)
{
    log_to_file(LOG_LOGFMT, LOG_INFO);
    LOG(LOG_INFO, "x", "e", LOG_TEXT("v", "a\nlevel=error\r\t\x1b[2J\x7f \xc2\x9b"));
    CHECK_EQ_STR(line_after_time("time="),
        " level=info module=x event=e v=\"a\\nlevel=error\\r\\t\\u001b[2J\\u007f \\u009b\"\n");
}

TEST(log, bytes_that_are_no_utf8_become_replacements)
{
    static const char bytes[] = "\xff|\xc0\xaf|\xed\xa0\x80|\xf4\x90\x80\x80|\xc3\xa9|\xe2\x82|";

    log_to_file(LOG_JSON, LOG_INFO);
    LOG(LOG_INFO, "x", "e", LOG_TEXT("v", bytes));
    CHECK(strstr(line_after_time("{\"time\":\""),
              "\"v\":\"\\ufffd|\\ufffd\\ufffd|\\ufffd\\ufffd\\ufffd|"
              "\\ufffd\\ufffd\\ufffd\\ufffd|\xc3\xa9|\\ufffd\\ufffd|\"}\n") != NULL);
}

TEST(log, empty_and_absent_values_are_quoted)
{
    log_to_file(LOG_LOGFMT, LOG_INFO);
    LOG(LOG_INFO, "x", "e", LOG_TEXT("a", ""), LOG_TEXT("b", NULL));
    CHECK_EQ_STR(line_after_time("time="), " level=info module=x event=e a=\"\" b=\"\"\n");
}

TEST(log, long_line_is_cut_whole_and_says_so)
{
    static char big[10001];

    /* Two-byte characters show a cut in the middle of one. */
    for (size_t i = 0; i + 1 < sizeof big; i++)
        big[i] = "\xc3\xa9"[i % 2];
    for (int format = LOG_LOGFMT; format <= LOG_JSON; format++) {
        log_to_file((enum log_format)format, LOG_INFO);
        LOG(LOG_INFO, "x", "e", LOG_TEXT("v", big), LOG_INT("lost", 1));
        what_was_said();
        CHECK_MSG(strlen(said) <= 4096, "%zu bytes", strlen(said));
        CHECK(strlen(said) > 4000);
        CHECK(strstr(said, format == LOG_JSON ? "\xc3\xa9\",\"cut\":true}\n"
                                              : "\xc3\xa9\" cut=true\n") != NULL);
        CHECK(strstr(said, "lost") == NULL);
        CHECK(strchr(said, '\n') == said + strlen(said) - 1);
        close(file_fd);
    }
}

TEST(log, every_length_of_a_value_fits_and_ends_the_line)
{
    static char value[4200];

    for (size_t size = 3900; size < 4150; size++) {
        memset(value, 'x', size);
        value[size] = '\0';
        log_to_file(LOG_JSON, LOG_INFO);
        LOG(LOG_INFO, "m", "e", LOG_TEXT("v", value), LOG_INT("n", INT64_MIN));
        what_was_said();
        CHECK(strlen(said) <= 4096);
        CHECK_EQ_STR(said + strlen(said) - 2, "}\n");
        close(file_fd);
    }
}

TEST(log, level_of_a_module_overrides_the_common_one)
{
    log_to_file(LOG_LOGFMT, LOG_WARN);
    CHECK(!log_is_on(LOG_INFO, "sql"));
    CHECK_EQ_INT(log_level_set("sql", LOG_DEBUG), 0);
    CHECK(log_is_on(LOG_DEBUG, "sql"));
    CHECK(!log_is_on(LOG_INFO, "http"));
    CHECK_EQ_INT(log_level_set("http", LOG_ERROR), 0);
    CHECK(!log_is_on(LOG_WARN, "http"));
    CHECK_EQ_INT(log_level_set("sql", -1), 0);
    CHECK(!log_is_on(LOG_INFO, "sql"));
    LOG_PLAIN(LOG_INFO, "sql", "not this");
    LOG_PLAIN(LOG_WARN, "sql", "but this");
    CHECK(strstr(what_was_said(), "not this") == NULL);
    CHECK(strstr(said, "but this") != NULL);
    CHECK_EQ_INT(log_level_set(NULL, LOG_DEBUG), 0);
    CHECK(log_is_on(LOG_DEBUG, "sql"));
    CHECK(!log_is_on(LOG_WARN, "http"));
}

TEST(log, modules_are_limited_and_bad_levels_refused)
{
    char name[16];
    int level;

    for (int i = 0; i < LOG_MODULES_MAX; i++) {
        snprintf(name, sizeof name, "m%d", i);
        CHECK_EQ_INT(log_level_set(name, LOG_DEBUG), 0);
    }
    CHECK_EQ_INT(log_level_set("one-more", LOG_DEBUG), TR_ELIMIT);
    CHECK_EQ_INT(log_level_set("m3", LOG_ERROR), 0);
    CHECK_EQ_STR(log_module_at(3, &level), "m3");
    CHECK_EQ_INT(level, LOG_ERROR);
    CHECK(log_module_at(LOG_MODULES_MAX, &level) == NULL);
    CHECK_EQ_INT(log_level_set("m0", 4), TR_EINVAL);
    CHECK_EQ_INT(log_level_set("m0", -2), TR_EINVAL);
    CHECK_EQ_INT(log_level_set(NULL, -1), TR_EINVAL);
    CHECK_EQ_INT(log_level_set("", LOG_INFO), TR_EINVAL);
    CHECK_EQ_INT(log_level_set("a-name-that-is-longer-than-24", LOG_INFO), TR_EINVAL);
}

TEST(log, level_names_are_read_back)
{
    enum log_level level;

    for (int i = LOG_DEBUG; i <= LOG_ERROR; i++) {
        CHECK_EQ_INT(log_level_parse(log_level_text(i), &level), 0);
        CHECK_EQ_INT(level, i);
    }
    CHECK_EQ_INT(log_level_parse("INFO", &level), TR_EINVAL);
    CHECK_EQ_INT(log_level_parse("", &level), TR_EINVAL);
}

static int ids_asked;

static void outer_ids(void *data, struct log_ids *ret_ids)
{
    ids_asked++;
    ret_ids->request = span_of(data);
    ret_ids->trace = SPAN("t1");
}

static void inner_ids(void *data, struct log_ids *ret_ids)
{
    ret_ids->request = span_of(data);
}

TEST(log, ids_of_the_thread_are_on_its_lines_until_put_back)
{
    static char outer[] = "r1", inner[] = "r2";
    struct log_context none, before;

    log_to_file(LOG_LOGFMT, LOG_INFO);
    none = log_context_set((struct log_context){ outer_ids, outer });
    LOG_PLAIN(LOG_INFO, "x", "with");
    before = log_context_set((struct log_context){ inner_ids, inner });
    LOG_PLAIN(LOG_INFO, "x", "within");
    log_context_set(before);
    LOG_PLAIN(LOG_INFO, "x", "again");
    log_context_set(none);
    LOG_PLAIN(LOG_INFO, "x", "without");
    what_was_said();
    CHECK(strstr(said, "event=with request=r1 trace=t1\n") != NULL);
    CHECK(strstr(said, "event=within request=r2\n") != NULL);
    CHECK(strstr(said, "event=again request=r1 trace=t1\n") != NULL);
    CHECK(strstr(said, "event=without\n") != NULL);
}

TEST(log, ids_are_asked_for_by_lines_only)
{
    static char outer[] = "r1";

    log_to_file(LOG_LOGFMT, LOG_INFO);
    log_context_set((struct log_context){ outer_ids, outer });
    LOG(LOG_DEBUG, "x", "off", LOG_INT("n", 1));
    CHECK_EQ_INT(ids_asked, 0);
    LOG(LOG_INFO, "x", "on", LOG_INT("n", 1));
    CHECK_EQ_INT(ids_asked, 1);
    log_context_set((struct log_context){ 0 });
}

static bool has_actor;

static bool actor_of_test(const char **ret_type, uint32_t *ret_number)
{
    *ret_type = "a-type-whose-name-is-longer-than-anybody-would-ever-want-to-read";
    *ret_number = UINT32_MAX;
    return has_actor;
}

TEST(log, actor_of_the_thread_is_on_its_lines)
{
    log_to_file(LOG_LOGFMT, LOG_INFO);
    log_actor_source(actor_of_test);
    LOG_PLAIN(LOG_INFO, "x", "outside");
    has_actor = true;
    LOG_PLAIN(LOG_INFO, "x", "inside");
    log_actor_source(NULL);
    what_was_said();
    CHECK(strstr(said, "event=outside\n") != NULL);
    CHECK(strstr(said,
              "event=inside actor=a-type-whose-name-is-longer-than-anybody-would-e#4294967295\n") !=
          NULL);
}

static void fill_reader_that_hangs(int fd)
{
    static char value[3000];
    int64_t dropped_before;

    log_setup(fd, LOG_LOGFMT, LOG_INFO);
    dropped_before = metric_named("troupe_log_dropped_total");
    memset(value, 'x', sizeof value - 1);
    /* More than any pipe or socket buffer holds; a write that waits would hang here. */
    for (int i = 0; i < 1000; i++)
        LOG(LOG_INFO, "x", "e", LOG_TEXT("v", value));
    CHECK(metric_named("troupe_log_dropped_total") > dropped_before);
    CHECK(metric_named("troupe_log_dropped_total") < dropped_before + 1000);
}

TEST(log, pipe_that_nobody_reads_costs_lines_not_time)
{
    int fds[2];
    size_t lines = 0;
    ssize_t got;

    CHECK(pipe(fds) == 0);
    fill_reader_that_hangs(fds[1]);
    /* The inherited descriptor still blocks: other processes share it. */
    CHECK((fcntl(fds[1], F_GETFL) & O_NONBLOCK) == 0);
    /* The lines that were written are complete. */
    CHECK(fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0);
    got = read(fds[0], said, sizeof said);
    CHECK(got > 0);
    for (ssize_t i = 0; i < got; i++)
        lines += said[i] == '\n';
    CHECK(said[got - 1] == '\n');
    CHECK(lines >= 4);
}

TEST(log, socket_that_nobody_reads_costs_lines_not_time)
{
    int fds[2];

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    fill_reader_that_hangs(fds[1]);
}

TEST(log, second_setup_replaces_the_pipe)
{
    int first[2];
    int second[2];

    CHECK(pipe(first) == 0 && pipe(second) == 0);
    log_setup(first[1], LOG_LOGFMT, LOG_INFO);
    log_setup(second[1], LOG_JSON, LOG_INFO);
    LOG_PLAIN(LOG_INFO, "x", "hello");
    CHECK(read(second[0], said, sizeof said) > 0);
    CHECK(said[0] == '{');
    CHECK(fcntl(first[0], F_SETFL, O_NONBLOCK) == 0);
    CHECK(read(first[0], said, sizeof said) < 0);
}

enum { WRITERS = 4, LINES_EACH = 500 };

static void *write_lines(void *data)
{
    for (int i = 0; i < LINES_EACH; i++) {
        LOG(LOG_INFO, "writer", "line", LOG_INT("of", (int)(intptr_t)data), LOG_INT("n", i));
        if (i % 50 == 0)
            log_level_set("writer", i % 100 == 0 ? LOG_DEBUG : -1);
    }
    return NULL;
}

TEST(log, lines_of_threads_do_not_mix)
{
    pthread_t threads[WRITERS];
    unsigned lines = 0;

    log_to_file(LOG_LOGFMT, LOG_INFO);
    fcntl(file_fd, F_SETFL, O_APPEND);
    for (intptr_t i = 0; i < WRITERS; i++)
        CHECK(pthread_create(&threads[i], NULL, write_lines, (void *)i) == 0);
    for (int i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    what_was_said();
    for (char *line = said, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        CHECK_MSG(strncmp(line, "time=", 5) == 0 && strstr(line, " n=") != NULL, "%s", line);
        lines++;
    }
    CHECK_EQ_INT(lines, WRITERS * LINES_EACH);
}
