/* SPDX-License-Identifier: Apache-2.0 */
/* log.c: build a line on the stack and write it with one write(2).
 *
 * Invariants:
 *  1. A line has at most LINE_SIZE_MAX bytes, which is PIPE_BUF: a pipe takes it whole or not at
 *     all, so lines of several threads never mix.
 *  2. For all values of fields, a line is one line of valid UTF-8 without control characters: a
 *     value can neither forge a line nor control a terminal.
 *  3. Logging does not wait. A pipe is reopened as a private, non-blocking file description; a
 *     socket gets MSG_DONTWAIT; a terminal is polled first. A file is as fast as the disk.
 *  4. Modules are added and never removed, so that readers need no lock: a writer stores
 *     `module_count` after the name, and a reader loads it before the name. */
#include "support/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <troupe/env.h>

#include "base/assert.h"
#include "support/metric.h"

enum {
    LINE_SIZE_MAX = 4096,
    TAIL_SIZE = 16,      /* `,"cut":true}` and the newline */
    SECONDS_SIZE = 19,   /* 2026-11-15T12:00:00 */
    ESCAPED_SIZE_MAX = 6 /* \u001b */
};
_Static_assert(LINE_SIZE_MAX <= PIPE_BUF, "a pipe must take a line whole");

struct line {
    char bytes[LINE_SIZE_MAX];
    size_t size;
    bool is_cut;
};

struct module {
    char name[LOG_MODULE_SIZE_MAX];
    _Atomic int level; /* -1: the common level */
};

enum sink_kind { SINK_FILE, SINK_SOCKET, SINK_POLLED };

static struct module modules[LOG_MODULES_MAX];
static _Atomic size_t module_count;
static _Atomic int common_level = LOG_INFO;
static _Atomic int lowest_level = LOG_INFO; /* of the common level and all modules' levels */
static _Atomic int line_format = LOG_LOGFMT;
static _Atomic int sink_fd = STDERR_FILENO;
static _Atomic int sink_kind = SINK_POLLED;
static int own_fd = -1; /* the private description of a pipe, -1 without one; guarded by `lock` */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static _Atomic(log_actor_fn) actor_source;
static _Thread_local struct log_context thread_context;

static struct metric metrics[] = {
    { .name = "troupe_log_lines_total", .labels = "level=\"debug\"", .help = "Lines logged" },
    { .name = "troupe_log_lines_total", .labels = "level=\"info\"", .help = "Lines logged" },
    { .name = "troupe_log_lines_total", .labels = "level=\"warn\"", .help = "Lines logged" },
    { .name = "troupe_log_lines_total", .labels = "level=\"error\"", .help = "Lines logged" },
    { .name = "troupe_log_dropped_total",
        .help = "Lines lost because their reader did not keep up or the write failed" },
};
enum { METRIC_DROPPED = LOG_ERROR + 1 };

/* ---- levels ---------------------------------------------------------------------------------- */

static const char *const level_texts[] = { "debug", "info", "warn", "error" };

const char *log_level_text(int level)
{
    tr_assert(level >= LOG_DEBUG && level <= LOG_ERROR);
    return level_texts[level];
}

int log_level_parse(const char *text, enum log_level *ret_level)
{
    for (int level = LOG_DEBUG; level <= LOG_ERROR; level++) {
        if (strcmp(text, level_texts[level]) == 0) {
            *ret_level = (enum log_level)level;
            return 0;
        }
    }
    return TR_EINVAL;
}

enum log_level log_level_common(void)
{
    return (enum log_level)atomic_load_explicit(&common_level, memory_order_relaxed);
}

static struct module *find_module(const char *name)
{
    /* Pairs with the store in add_module: a counted name is complete. */
    size_t count = atomic_load_explicit(&module_count, memory_order_acquire);

    for (size_t i = 0; i < count; i++)
        if (strcmp(modules[i].name, name) == 0)
            return &modules[i];
    return NULL;
}

const char *log_module_at(size_t index, int *ret_level)
{
    if (index >= atomic_load_explicit(&module_count, memory_order_acquire))
        return NULL;
    *ret_level = atomic_load_explicit(&modules[index].level, memory_order_relaxed);
    return modules[index].name;
}

bool log_is_on(enum log_level level, const char *module_name)
{
    const struct module *module;
    int own = -1;

    if ((int)level < atomic_load_explicit(&lowest_level, memory_order_relaxed))
        return false;
    module = find_module(module_name);
    if (module != NULL)
        own = atomic_load_explicit(&module->level, memory_order_relaxed);
    return (int)level >= (own >= 0 ? own : (int)log_level_common());
}

static struct module *add_module(const char *name)
{
    size_t count = atomic_load_explicit(&module_count, memory_order_relaxed);
    struct module *module;

    if (count == LOG_MODULES_MAX)
        return NULL;
    module = &modules[count];
    snprintf(module->name, sizeof module->name, "%s", name);
    atomic_store_explicit(&module->level, -1, memory_order_relaxed);
    /* Pairs with the loads in find_module and log_module_at. */
    atomic_store_explicit(&module_count, count + 1, memory_order_release);
    return module;
}

static void find_lowest_level(void)
{
    int lowest = (int)log_level_common();
    int level;

    for (size_t i = 0; log_module_at(i, &level) != NULL; i++)
        if (level >= 0 && level < lowest)
            lowest = level;
    atomic_store_explicit(&lowest_level, lowest, memory_order_relaxed);
}

static int set_level_locked(const char *name, int level)
{
    struct module *module;

    if (name == NULL) {
        atomic_store_explicit(&common_level, level, memory_order_relaxed);
        return 0;
    }
    module = find_module(name);
    if (module == NULL && level < 0)
        return 0;
    if (module == NULL)
        module = add_module(name);
    if (module == NULL)
        return TR_ELIMIT;
    atomic_store_explicit(&module->level, level, memory_order_relaxed);
    return 0;
}

int log_level_set(const char *module, int level)
{
    int rc;

    if (level < -1 || level > LOG_ERROR || (module == NULL && level < 0))
        return TR_EINVAL;
    if (module != NULL && (module[0] == '\0' || strlen(module) >= LOG_MODULE_SIZE_MAX))
        return TR_EINVAL;
    pthread_mutex_lock(&lock);
    rc = set_level_locked(module, level);
    find_lowest_level();
    pthread_mutex_unlock(&lock);
    return rc;
}

/* ---- where lines go -------------------------------------------------------------------------- */

/* Reopen a pipe as a private file description: O_NONBLOCK on the inherited one would also change it
 * for the parent process. */
static int open_own(int fd)
{
    char path[32];

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
}

/* Open or replace own_fd. Its number never changes, so a thread that loaded it before a second
 * log_setup still writes to a log. */
static int replace_own(int fd)
{
    int opened = open_own(fd);

    if (opened < 0)
        return -1;
    if (own_fd < 0) {
        own_fd = opened;
        return own_fd;
    }
    if (dup3(opened, own_fd, O_CLOEXEC) < 0) {
        close(opened);
        return -1;
    }
    close(opened);
    return own_fd;
}

void log_setup(int fd, enum log_format format, enum log_level level)
{
    enum sink_kind kind = SINK_POLLED;
    struct stat status;

    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    pthread_mutex_lock(&lock);
    if (fstat(fd, &status) == 0) {
        if (S_ISREG(status.st_mode))
            kind = SINK_FILE;
        else if (S_ISSOCK(status.st_mode))
            kind = SINK_SOCKET;
        else if (S_ISFIFO(status.st_mode) && replace_own(fd) >= 0)
            fd = own_fd;
    }
    atomic_store_explicit(&line_format, (int)format, memory_order_relaxed);
    atomic_store_explicit(&common_level, (int)level, memory_order_relaxed);
    find_lowest_level();
    atomic_store_explicit(&sink_kind, (int)kind, memory_order_relaxed);
    atomic_store_explicit(&sink_fd, fd, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
}

static ssize_t write_once(int fd, enum sink_kind kind, const struct line *line)
{
    struct pollfd ready = { .fd = fd, .events = POLLOUT };

    if (kind == SINK_SOCKET)
        return send(fd, line->bytes, line->size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (kind == SINK_POLLED && poll(&ready, 1, 0) == 0) {
        errno = EAGAIN;
        return -1;
    }
    return write(fd, line->bytes, line->size);
}

static void line_send(const struct line *line)
{
    int fd = atomic_load_explicit(&sink_fd, memory_order_relaxed);
    enum sink_kind kind = (enum sink_kind)atomic_load_explicit(&sink_kind, memory_order_relaxed);
    int saved = errno; /* the caller may log an error before it returns errno */
    ssize_t written;

    do
        written = write_once(fd, kind, line);
    while (written < 0 && errno == EINTR);
    if (written != (ssize_t)line->size)
        metric_add(&metrics[METRIC_DROPPED], 1);
    errno = saved;
}

/* ---- bytes of a line ------------------------------------------------------------------------- */

static size_t line_room(const struct line *line)
{
    return LINE_SIZE_MAX - TAIL_SIZE - line->size;
}

/* Append all the bytes, or none of them and mark the line as cut. */
static bool line_put(struct line *line, const char *bytes, size_t size)
{
    if (size > line_room(line)) {
        line->is_cut = true;
        return false;
    }
    memcpy(line->bytes + line->size, bytes, size);
    line->size += size;
    return true;
}

static bool line_put_text(struct line *line, const char *text)
{
    return line_put(line, text, strlen(text));
}

/* Return the size of the UTF-8 sequence at `at`, or 0 if it is invalid (RFC 3629: no surrogates, no
 * overlong forms). */
static size_t sequence_size(const unsigned char *at, size_t left)
{
    size_t size = at[0] < 0x80 ? 1 : at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;

    if (size == 0 || size > left || at[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < size; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f))
        return 0;
    if ((at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f))
        return 0;
    return size;
}

/* Escape one character for use between quotes. Returns the number of bytes read; *ret_size is the
 * number of bytes written to `ret_text`. */
static size_t escape_character(
    const unsigned char *at, size_t left, char ret_text[ESCAPED_SIZE_MAX + 1], size_t *ret_size)
{
    static const char short_names[] = "\"\"\\\\\nn\rr\tt";
    size_t taken = sequence_size(at, left);
    unsigned code = at[0];

    if (taken == 0) {
        *ret_size = (size_t)snprintf(ret_text, ESCAPED_SIZE_MAX + 1, "\\ufffd");
        return 1;
    }
    if (taken == 2)
        code = (at[0] & 0x1fu) << 6 | (at[1] & 0x3fu);
    for (size_t i = 0; taken == 1 && i + 1 < sizeof short_names; i += 2) {
        if (at[0] == (unsigned char)short_names[i]) {
            ret_text[0] = '\\';
            ret_text[1] = short_names[i + 1];
            *ret_size = 2;
            return 1;
        }
    }
    /* C0, DEL and C1 would control a terminal. */
    if (taken <= 2 && (code < 0x20 || (code >= 0x7f && code < 0xa0))) {
        *ret_size = (size_t)snprintf(ret_text, ESCAPED_SIZE_MAX + 1, "\\u%04x", code);
        return taken;
    }
    memcpy(ret_text, at, taken);
    *ret_size = taken;
    return taken;
}

/* Append as much of the text as fits, between quotes. */
static void line_put_quoted(struct line *line, struct span text)
{
    char escaped[ESCAPED_SIZE_MAX + 1];
    size_t size;

    if (line_room(line) < 2) {
        line->is_cut = true;
        return;
    }
    line_put(line, "\"", 1);
    for (size_t i = 0; i < text.size;) {
        i += escape_character((const unsigned char *)text.at + i, text.size - i, escaped, &size);
        if (size + 1 > line_room(line)) {
            line->is_cut = true;
            break;
        }
        line_put(line, escaped, size);
    }
    line_put(line, "\"", 1);
}

static bool is_bare(struct span text)
{
    for (size_t i = 0; i < text.size; i++) {
        char c = text.at[i];

        if (c <= ' ' || c > '~' || c == '"' || c == '=' || c == '\\')
            return false;
    }
    return text.size > 0;
}

/* ---- fields ---------------------------------------------------------------------------------- */

/* Append `,"key":` or ` key=` if a short value fits after it. */
static bool line_put_key(struct line *line, enum log_format format, const char *key)
{
    size_t size = strlen(key);

    if (size + 32 > line_room(line)) {
        line->is_cut = true;
        return false;
    }
    line_put_text(line,
        format == LOG_JSON ? (line->size == 0 ? "{\"" : ",\"") : (line->size == 0 ? "" : " "));
    line_put(line, key, size);
    line_put_text(line, format == LOG_JSON ? "\":" : "=");
    return true;
}

static void line_put_field(
    struct line *line, enum log_format format, const char *key, struct span text)
{
    if (!line_put_key(line, format, key))
        return;
    if (format == LOG_LOGFMT && text.size <= line_room(line) && is_bare(text))
        line_put(line, text.at, text.size);
    else
        line_put_quoted(line, text);
}

static void line_put_number(
    struct line *line, enum log_format format, const char *key, int64_t number)
{
    char text[24];

    if (!line_put_key(line, format, key))
        return;
    snprintf(text, sizeof text, "%lld", (long long)number);
    line_put_text(line, text);
}

/* Append the time in UTC with milliseconds. The thread keeps the text up to the seconds, which most
 * lines share. */
static void line_put_time(struct line *line, enum log_format format)
{
    static _Thread_local uint64_t kept_second = UINT64_MAX;
    static _Thread_local char kept[SECONDS_SIZE + 1];
    const struct tr_env *env = tr_env_real();
    uint64_t now_ms = env->wall_ns(env->data) / 1000000;
    uint64_t second = now_ms / 1000;
    char text[SECONDS_SIZE + 8];
    struct tm parts;

    if (second != kept_second) {
        time_t seconds = (time_t)second;

        gmtime_r(&seconds, &parts);
        strftime(kept, sizeof kept, "%Y-%m-%dT%H:%M:%S", &parts);
        kept_second = second;
    }
    snprintf(text, sizeof text, "%s.%03uZ", kept, (unsigned)(now_ms % 1000));
    line_put_field(line, format, "time", span_of(text));
}

/* End the line. line_put leaves TAIL_SIZE bytes free for this. */
static void line_put_tail(struct line *line, enum log_format format)
{
    const char *tail = line->is_cut ? (format == LOG_JSON ? ",\"cut\":true}\n" : " cut=true\n")
                                    : (format == LOG_JSON ? "}\n" : "\n");
    size_t size = strlen(tail);

    tr_assert(size <= TAIL_SIZE);
    memcpy(line->bytes + line->size, tail, size);
    line->size += size;
}

static void line_put_context(struct line *line, enum log_format format)
{
    struct log_ids ids = { 0 };

    if (thread_context.ids == NULL)
        return;
    thread_context.ids(thread_context.data, &ids);
    if (ids.request.size > 0)
        line_put_field(line, format, "request", ids.request);
    if (ids.trace.size > 0)
        line_put_field(line, format, "trace", ids.trace);
}

static void line_put_actor(struct line *line, enum log_format format)
{
    log_actor_fn source = atomic_load_explicit(&actor_source, memory_order_relaxed);
    const char *type;
    uint32_t number;
    char text[64];

    if (source == NULL || !source(&type, &number))
        return;
    snprintf(text, sizeof text, "%.48s#%u", type, (unsigned)number);
    line_put_field(line, format, "actor", span_of(text));
}

void log_write(enum log_level level, const char *module, const char *event,
    const struct log_field *fields, size_t count)
{
    enum log_format format =
        (enum log_format)atomic_load_explicit(&line_format, memory_order_relaxed);
    struct line line;

    if (!log_is_on(level, module))
        return;
    line.size = 0;
    line.is_cut = false;
    line_put_time(&line, format);
    line_put_field(&line, format, "level", span_of(log_level_text((int)level)));
    line_put_field(&line, format, "module", span_of(module));
    line_put_field(&line, format, "event", span_of(event));
    line_put_context(&line, format);
    line_put_actor(&line, format);
    for (size_t i = 0; i < count; i++) {
        if (fields[i].kind == LOG_FIELD_INT)
            line_put_number(&line, format, fields[i].key, fields[i].number);
        else
            line_put_field(&line, format, fields[i].key, fields[i].text);
    }
    line_put_tail(&line, format);
    line_send(&line);
    metric_add(&metrics[level], 1);
}

struct log_context log_context_set(struct log_context context)
{
    struct log_context before = thread_context;

    thread_context = context;
    return before;
}

void log_actor_source(log_actor_fn source)
{
    atomic_store_explicit(&actor_source, source, memory_order_relaxed);
}
