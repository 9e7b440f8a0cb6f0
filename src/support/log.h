/* SPDX-License-Identifier: Apache-2.0 */
/* log.h: one line an event, with fields, as logfmt or JSON. Values are escaped; never pass a
 * payload, a token or a key: lengths and hashes say enough. */
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
 * needs one field or more; LOG_PLAIN has none. */
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
/* One write(2) of one line to the log's descriptor; any thread. Lines are at most 4 KiB: what does
 * not fit is left out and the line says cut=true. A line that the descriptor cannot take now (a
 * reader that hangs) is dropped and counted in troupe_log_dropped_total: logging never waits. */
void log_write(enum log_level level, const char *module, const char *event,
    const struct log_field *fields, size_t count);

/* Where and how. Default: stderr, logfmt, info. `fd` stays the caller's and must stay open. Any
 * time, one caller at a time. */
void log_setup(int fd, enum log_format format, enum log_level level);
enum { LOG_MODULES_MAX = 32, LOG_MODULE_SIZE_MAX = 24 };
/* A module's own level; -1 takes it back to the common one, which module NULL sets. Any time.
 * TR_ELIMIT past 32 modules, TR_EINVAL for a level or a name that cannot be. */
int log_level_set(const char *module, int level);
int log_level_parse(const char *text, enum log_level *ret_level);
const char *log_level_text(int level);
enum log_level log_level_common(void);
/* The module at `index` among those that ever had a level of their own; NULL past the last. Level
 * -1: the common one. The text lives for ever. */
const char *log_module_at(size_t index, int *ret_level);

/* What this thread serves. `ids` is asked when a line is written and not before, so an id that
 * nobody logs is never made; it leaves out what there is none of. The texts are borrowed until the
 * context changes. */
struct log_ids {
    struct span request, trace;
};
struct log_context {
    void (*ids)(void *data, struct log_ids *ret_ids);
    void *data;
};
/* Every line of this thread has the ids until the context changes again. Returns the one before, to
 * be put back: what is served may be served within something else. {0} is none. */
struct log_context log_context_set(struct log_context context);

/* Who knows which actor a thread runs; the runtime says so once. False: none. The type lives as
 * long as the program. Lines written in an actor's turn have actor=TYPE#NUMBER. */
typedef bool (*log_actor_fn)(const char **ret_type, uint32_t *ret_number);
void log_actor_source(log_actor_fn source);

#endif
