/* SPDX-License-Identifier: Apache-2.0 */
/* call.h: API calls that are one unit of SQL and ask no actor, described by tables. A struct call lists the
 * parameters, the role that the caller needs, the SQL statements, the error for each statement that
 * fails, and the members of the JSON answer. call.c reads, checks, runs and answers:
 *
 *     const struct call call_opt_in = {
 *         .steps = CALL_STEPS(STEP_ROWS(1, consent_put, "@caller # @now", WITH(1)),
 *             AUDIT("optIn", "@null", "@null")),
 *         .fields = FIELDS({ "success", FIELD_BOOL, FIELD_NUMBER(1) },
 *             { "optedIn", FIELD_BOOL, COLUMN(0, 0) }),
 *     };
 *
 * The order: enter ──▶ read params ──▶ check ──▶ one unit of SQL ──▶ refusals ──▶ decide ──▶ write
 * the answer ──▶ after ──▶ send. Hooks (`enter`, `check`, `decide`, `after`, a step's `when` and
 * `add`, a field's `put`) are functions for what a table cannot express.
 *
 * Invariants:
 * 1. A call that writes (a POST, unless it is CALL_READS; a GET with CALL_WRITES) consumes the
 *    caller's token in its unit. A unit that fails stores nothing and leaves the token unused.
 * 2. Values of parameters live as long as the request.
 * 3. A call answers exactly once. A hook that returns false has answered, or will answer later. */
#ifndef SERVICES_COMMON_CALL_H
#define SERVICES_COMMON_CALL_H

#include "services/common/db_query.h"
#include "services/common/field.h"
#include "services/common/param.h"

enum { CALL_STEPS_MAX = 12, CALL_DAY_MS = 86400000, CALL_ID_SIZE = 32, CALL_ROLES = 3 };

/* ---- steps ----------------------------------------------------------------------------------- */

struct call_run;

struct refusal {
    unsigned status; /* 0: none */
    const char *label;
    const char *text;
    uint32_t retry_s; /* Retry-After of a 429 */
};

/* clang-format off */
#define REFUSE(status_, label_, text_) { .status = (status_), .label = (label_), .text = (text_) }
#define REFUSE_MANY(retry_s_, label_, text_) { 429, label_, text_, retry_s_ }
/* clang-format on */

/* The values of a statement from $1 on are words:
 *
 *     convoId         a parameter in the SQL type of its kind; NULL if a text or bytes are missing
 *     cursor.number   the number of a parameter of any kind: `check` has set it
 *     action.text     the text of one: a choice as the client sent it
 *     @caller @null   the caller; NULL
 *     @now @now_s     the time in milliseconds or seconds; @now+# adds the next number
 *     @id @random_id  the id of what this call creates; a new id each time
 *     @item @index    of the list parameter `each`: the item that this repetition is for
 *     # 'text'        the next of `numbers`; a constant text */
struct step {
    const struct sql_statement *statement;
    int64_t rows; /* rows that it must change or return, or SQL_ROWS_ANY */
    const char *args;
    const int64_t *numbers;
    const char *each;        /* repeat the step for every item of this list parameter; NULL: once */
    struct refusal refusal;  /* the error if the unit failed at this step */
    struct refusal conflict; /* the error if it violated a constraint; if unset, `refusal` */
    struct refusal missing;  /* the error if the step returned no row; the unit is stored anyway */
    bool (*when)(const struct call_run *run); /* NULL: always */
    bool (*unless)(const struct call_run *run);
    const struct sql_statement *otherwise; /* runs with the same args if `when` returns false */
    void (*add)(struct call_run *run, struct sql_unit *unit); /* adds the steps itself */
};
/* clang-format off */
#define STEP_ROWS(rows_, statement_, ...)                                                          \
    { .statement = &(statement_), .rows = (rows_), .args = __VA_ARGS__ }
#define STEP(statement_, ...) STEP_ROWS(SQL_ROWS_ANY, statement_, __VA_ARGS__)
#define WITH(...) .numbers = (const int64_t[]){ __VA_ARGS__ }
#define CALL_STEPS(...) ((const struct step[]){ __VA_ARGS__, { .rows = 0 } })
/* clang-format on */

/* ---- where fields come from ------------------------------------------------------------------ */

enum call_from {
    FROM_COLUMN,   /* a column of the list's row or of a step's first row; absent: NULL, no row */
    FROM_LAST_ROW, /* a column of the last row of a step */
    FROM_PARAM,
    FROM_ITEM, /* the item of a list parameter that belongs to this row of the list */
    FROM_CALLER,
    FROM_NOW, /* the time of the request plus a constant */
    FROM_ID,
    FROM_NUMBER,
    FROM_CHANGED,  /* rows changed by a step and the next `at` steps, in all repetitions */
    FROM_COUNT,    /* the number of items of a list parameter */
    FROM_HAS_ROWS, /* true if the step returned a row; in a FROM_EACH list: if its repetition did */
    FROM_EACH,     /* a list: one item per repetition of a step, from its first row */
    FROM_ALL,      /* a list: one item per row, of all repetitions of a step */
};
#define COLUMN(step_, column) .from = FROM_COLUMN, .step = (step_), .at = (column)
#define LAST_ROW(step_, column) .from = FROM_LAST_ROW, .step = (step_), .at = (column)
#define FIELD_PARAM(name) .from = FROM_PARAM, .param = (name)
#define FIELD_ITEM(name) .from = FROM_ITEM, .param = (name)
#define FIELD_CALLER .from = FROM_CALLER
#define FIELD_NOW(plus) .from = FROM_NOW, .number = (plus)
#define FIELD_ID .from = FROM_ID
#define FIELD_NUMBER(constant) .from = FROM_NUMBER, .number = (constant)
#define FIELD_CHANGED(step_) .from = FROM_CHANGED, .step = (step_)
#define FIELD_HAS_ROWS(step_) .from = FROM_HAS_ROWS, .step = (step_)
#define OPTIONAL .is_optional = true
/* clang-format off */
/* Lists of the rows of a step, and of the repetitions of a step. */
#define ROWS(name_, step_, ...)                                                                    \
    { name_, FIELD_LIST, .step = (step_), .fields = FIELDS(__VA_ARGS__) }
#define EACH_STEP(name_, step_, ...)                                                               \
    { name_, FIELD_LIST, .from = FROM_EACH, .step = (step_), .fields = FIELDS(__VA_ARGS__) }
#define ALL_ROWS(name_, step_, ...)                                                                \
    { name_, FIELD_LIST, .from = FROM_ALL, .step = (step_), .fields = FIELDS(__VA_ARGS__) }
#define TRUE_FIELD(name_) { name_, FIELD_BOOL, FIELD_NUMBER(1) }
#define SAME_TEXT(name_) { name_, FIELD_TEXT, FIELD_PARAM(name_) } /* of the request */
#define TIME_NOW(name_, plus) { name_, FIELD_TIME_MS, FIELD_NOW(plus) }
#define CURSOR_OF(step_, column) { "cursor", FIELD_TEXT, LAST_ROW(step_, column), OPTIONAL }
/* clang-format on */
#define MAP_ROWS(step_)                                                                            \
    .step = (step_),                                                                               \
    .fields = FIELDS({ "name", FIELD_TEXT, .at = 0 }, { "number", FIELD_INT, .at = 1 })
/* {"success": true} */
#define SUCCESS FIELDS(TRUE_FIELD("success"))

/* ---- the call -------------------------------------------------------------------------------- */

/* The caller's role in what params[0] names, as the first steps of a unit. Each of them fails the
 * unit. $1 is params[0], $2 the caller, $3 the role that the call demands. */
struct role_check {
    struct sql_statement exists;
    struct sql_statement is_member;
    struct sql_statement is_enough;
    struct refusal missing, stranger;
    struct refusal low[CALL_ROLES]; /* by the role that the call demands */
};

enum call_unit {
    CALL_BY_METHOD, /* a GET reads, a POST writes */
    CALL_READS,
    CALL_WRITES,
};

struct call {
    const struct param *params;       /* NULL: none, and the body is not looked at */
    const struct role_check *role_of; /* checks `role` in params[0]; NULL: anyone may call */
    uint32_t role;
    enum call_unit unit;
    uint64_t key; /* of the unit; 0: call_key of params[0] if role_of is set, else of the caller */
    const struct step *steps;
    const struct field *fields;
    size_t (*answer_size)(const struct call_run *run); /* an estimate in bytes; NULL: small */
    bool is_large; /* answers 503 while too many large answers are being sent */
    /* Runs before the parameters are read. */
    bool (*enter)(struct call_run *run);
    /* Runs before the unit. It reports a wrong parameter to run->expect, which is answered with
     * 400. */
    bool (*check)(struct call_run *run);
    /* Runs when the unit has ended and no step was refused. */
    bool (*decide)(struct call_run *run);
    /* Runs when a unit has ended or could not start: did the database answer? */
    void (*count)(struct call_run *run, bool is_answered);
    /* Runs when the answer is written, before it is sent. */
    void (*after)(struct call_run *run);
};

/* One request that a call serves. Lives as long as the request. */
struct call_run {
    const struct call *call;
    struct http_request *request;
    const struct call_service *service;
    struct span caller; /* {NULL, 0}: an operator */
    int64_t now_ms;
    struct param_value values[PARAMS_MAX];
    struct json_expect *expect; /* in `check` */
    struct sql_unit *unit;      /* in `decide`, `after` and `put` */
    uint32_t first[CALL_STEPS_MAX];
    uint32_t repeats[CALL_STEPS_MAX];
    struct {
        const struct field *list;
        uint32_t row, repeat,
            repeat_row; /* row `row` of the list is row `repeat_row` of a repeat */
    } seek;             /* where a FROM_ALL list is */
    char id[CALL_ID_SIZE];
    bool has_id;
    void *data;    /* of the hooks */
    uint32_t next; /* for the hooks; each call says what it is */
};

/* Serve a request by this call. */
void call_begin(
    struct http_request *request, const struct call_service *service, const struct call *call);

/* Build the unit of a call and run it; then `decide` and the rest of that call follow. For hooks:
 * the next phase of a call that takes two units, or a call whose check had to wait. */
void call_start(struct call_run *run, const struct call *call);
/* The same from `decide`: the unit that came back is freed first. */
void call_next(struct call_run *run, const struct call *call);
/* Answer with the fields of the call, for a hook that found nothing to store. */
void call_answer(struct call_run *run);
/* Copy bytes into the request's memory. {NULL, 0}: out of memory. */
struct span call_keep(struct call_run *run, struct span bytes);
/* Answer with an error and free the unit, if there is one. Always returns false. */
bool call_refuse(struct call_run *run, unsigned status, const char *label, const char *text);
bool call_refuse_with(struct call_run *run, const struct refusal *refusal);
bool call_refuse_memory(struct call_run *run);
/* call_rows returns the number of rows of a step of the table, 0 if it did not run; call_step
 * returns the index of its first repetition in the unit. */
uint32_t call_rows(const struct call_run *run, uint32_t step);
uint32_t call_step(const struct call_run *run, uint32_t step);
int64_t call_changed(const struct call_run *run, uint32_t step);
/* Return the run that a field's `put` writes for. */
static inline struct call_run *call_run_of(const struct field_source *source)
{
    return source->data;
}
/* Return the value of a parameter of the call's table. */
struct param_value *call_value(const struct call_run *run, const char *name);
static inline int64_t call_number(const struct call_run *run, const char *name)
{
    return call_value(run, name)->number;
}
static inline bool call_has(const struct call_run *run, const char *name)
{
    return call_value(run, name)->is_given;
}
static inline struct span call_text(const struct call_run *run, const char *name)
{
    return call_value(run, name)->text;
}
/* Return a column of the first row of a step, which has a row. */
int64_t call_int(const struct call_run *run, uint32_t step, uint32_t column);
struct span call_bytes(const struct call_run *run, uint32_t step, uint32_t column);
/* A `put`: write the members `fields` if the step changed `number` rows. */
void call_put_if_changed(
    struct json_writer *writer, const struct field *field, const struct field_source *source);
/* Make an id: 128 random bits in hex. */
void call_new_id(const struct tr_env *env, char ret_id[CALL_ID_SIZE]);
/* The id of what this call creates. */
struct span call_id(struct call_run *run);

/* Answer 200 with JSON, and free the buffer. If the buffer failed, answer 503; after a POST, which
 * may have stored something, 504. */
void call_respond(struct http_request *request, struct buffer *answer);
/* For hooks: answer with these bytes instead of the fields, and free the buffer. Always false. */
bool call_respond_instead(
    struct call_run *run, unsigned status, const char *media, struct buffer *answer);
/* Hash an owner to a unit's key: units with the same key run in order. */
uint64_t call_key(struct span owner);

#endif
