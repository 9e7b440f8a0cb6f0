/* SPDX-License-Identifier: Apache-2.0 */
/* log.h: write one line per event, with fields, as logfmt or JSON. The log escapes values. Never
 * pass a payload, a token or a key: log its length or its hash. */
#ifndef SUPPORT_LOG_H
#define SUPPORT_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "support/buffer.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_LOGFMT, LOG_JSON };

struct log_field {
    const char *key;
    enum { LOG_FIELD_TEXT, LOG_FIELD_INT } kind;
    struct span text;
    int64_t number;
};
#define LOG_TEXT(key, text) ((struct log_field){ (key), LOG_FIELD_TEXT, span_of(text), 0 })
#define LOG_SPAN(key, span) ((struct log_field){ (key), LOG_FIELD_TEXT, (span), 0 })
#define LOG_INT(key, number) ((struct log_field){ (key), LOG_FIELD_INT, { NULL, 0 }, (number) })

/* LOG(LOG_WARN, "sql", "batch replayed one by one", LOG_INT("units", n), LOG_TEXT("why", text));
 * LOG takes at least one field, LOG_PLAIN takes none. */
#define LOG(level, module, event, ...)                                                             \
    do {                                                                                           \
        if (log_is_on((level), (module))) {                                                        \
            const struct log_field log_fields_[] = { __VA_ARGS__ };                                \
            log_write((level), (module), (event), log_fields_,                                     \
                sizeof log_fields_ / sizeof log_fields_[0]);                                       \
        }                                                                                          \
    } while (0)
#define LOG_PLAIN(level, module, event) log_write((level), (module), (event), NULL, 0)

bool log_is_on(enum log_level level, const char *module);
/* Write one line to the log's descriptor with one write(2). Any thread. A line has at most 4 KiB; a
 * longer one is cut and has the field cut=true. Logging never waits: if the descriptor cannot take
 * the line now (its reader hangs), the line is dropped and counted in troupe_log_dropped_total. */
void log_write(enum log_level level, const char *module, const char *event,
    const struct log_field *fields, size_t count);

/* Set descriptor, format and level; the default is stderr, logfmt, info. The caller owns `fd` and
 * keeps it open. One caller at a time; other threads may log meanwhile. */
void log_setup(int fd, enum log_format format, enum log_level level);
enum { LOG_MODULES_MAX = 32, LOG_MODULE_SIZE_MAX = 24 };
/* Set the level of a module, or with module NULL the common level; -1 returns a module to the
 * common level. Any thread. TR_ELIMIT for more than 32 modules, TR_EINVAL for an invalid level or
 * name. */
int log_level_set(const char *module, int level);
int log_level_parse(const char *text, enum log_level *ret_level);
const char *log_level_text(int level);
enum log_level log_level_common(void);
/* Return the module at `index` among the modules that ever had a level of their own; NULL after the
 * last. *ret_level is -1 for the common level. The text is never freed. */
const char *log_module_at(size_t index, int *ret_level);

/* The request that this thread serves. log_write calls `ids` for each line, so an id that appears
 * in no line is never computed. `ids` leaves an absent id empty; its texts stay valid until the
 * context changes. */
struct log_ids {
    struct span request, trace;
};
struct log_context {
    void (*ids)(void *data, struct log_ids *ret_ids);
    void *data;
};
/* Add the ids of `context` to every line of this thread; {0} means no ids. Returns the previous
 * context, which the caller restores when it is done: one request may be served inside another. */
struct log_context log_context_set(struct log_context context);

/* Set the function that names the actor of the calling thread; the server sets it once. It returns
 * false on a thread without an actor; the type's text is never freed. A line written while an actor
 * runs has the field actor=TYPE#NUMBER. */
typedef bool (*log_actor_fn)(const char **ret_type, uint32_t *ret_number);
void log_actor_source(log_actor_fn source);

#endif
