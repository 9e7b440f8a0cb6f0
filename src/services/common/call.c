/* SPDX-License-Identifier: Apache-2.0 */
#include "services/common/call.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "services/common/db_query.h"
#include "sql/unit.h"

static const uint32_t NO_STEP = UINT32_MAX;

/* False at the end of a table of steps. */
static bool is_step(const struct step *step)
{
    return step->statement != NULL || step->add != NULL;
}

uint64_t call_key(struct span owner)
{
    uint64_t hash = UINT64_C(14695981039346656037);

    for (size_t i = 0; i < owner.size; i++)
        hash = (hash ^ (unsigned char)owner.at[i]) * UINT64_C(1099511628211);
    return hash;
}

void call_new_id(const struct tr_env *env, char ret_id[CALL_ID_SIZE])
{
    unsigned long long high = env->random(env->data);
    unsigned long long low = env->random(env->data);
    char text[CALL_ID_SIZE + 1];

    (void)snprintf(text, sizeof text, "%016llx%016llx", high, low);
    memcpy(ret_id, text, CALL_ID_SIZE);
}

struct span call_id(struct call_run *run)
{
    if (!run->has_id)
        call_new_id(run->service->env, run->id);
    run->has_id = true;
    return (struct span){ run->id, sizeof run->id };
}

/* ---- refusing --------------------------------------------------------------------------------- */

bool call_refuse_with(struct call_run *run, const struct refusal *refusal)
{
    char seconds[16];

    tr_assert(refusal->status >= 400 && refusal->label != NULL);
    db_query_release(run->request);
    if (refusal->retry_s > 0) {
        (void)snprintf(seconds, sizeof seconds, "%u", refusal->retry_s);
        (void)http_add_header(run->request, "Retry-After", span_of(seconds));
    }
    http_respond_error(run->request, refusal->status, refusal->label, refusal->text);
    return false;
}

bool call_refuse(struct call_run *run, unsigned status, const char *label, const char *text)
{
    return call_refuse_with(run, &(struct refusal){ status, label, text, 0 });
}

bool call_refuse_memory(struct call_run *run)
{
    db_query_release(run->request);
    http_respond_shed(run->request, 503, 1, "memory");
    return false;
}

/* ---- values ----------------------------------------------------------------------------------- */

static struct param_value *value_named(const struct call_run *run, struct span name)
{
    int index = param_find(run->call->params, name);

    tr_assert(index >= 0); /* the table names it */
    return (struct param_value *)(uintptr_t)&run->values[index];
}

struct param_value *call_value(const struct call_run *run, const char *name)
{
    return value_named(run, span_of(name));
}

struct span call_keep(struct call_run *run, struct span bytes)
{
    char *copy = http_alloc(run->request, bytes.size + 1);

    if (copy == NULL)
        return (struct span){ NULL, 0 };
    memcpy(copy, bytes.at, bytes.size);
    return (struct span){ copy, bytes.size };
}

/* NULL: the role was enough. */
static const struct refusal *refusal_of_role(
    const struct call *call, const struct sql_statement *failed)
{
    const struct role_check *check = call->role_of;

    if (check == NULL)
        return NULL;
    tr_assert(call->role < CALL_ROLES);
    return failed == &check->exists      ? &check->missing
           : failed == &check->is_member ? &check->stranger
           : failed == &check->is_enough ? &check->low[call->role]
                                         : NULL;
}

/* The declared step that a step of the unit belongs to: the last that begins at or before it. */
static const struct step *declared_step(const struct call_run *run, int64_t failed)
{
    const struct step *found = NULL;

    for (uint32_t i = 0; is_step(&run->call->steps[i]); i++)
        if (run->first[i] != NO_STEP && (int64_t)run->first[i] <= failed)
            found = &run->call->steps[i];
    return found;
}

static void refuse_failed(struct call_run *run, const struct sql_unit *unit)
{
    static const struct refusal conflict = { 409, "Conflict",
        "This changed in the meantime; read it again.", 0 };
    int64_t failed = sql_unit_failed_step(unit);
    const struct step *step = declared_step(run, failed);
    const struct refusal *refusal;

    tr_assert(failed >= 0);
    refusal = refusal_of_role(run->call, unit->steps[failed].statement);
    if (refusal == NULL && step != NULL && step->conflict.status != 0 &&
        sql_unit_status(unit) == SQL_ECONSTRAINT)
        refusal = &step->conflict;
    if (refusal == NULL && step != NULL && step->refusal.status != 0)
        refusal = &step->refusal;
    call_refuse_with(run, refusal == NULL ? &conflict : refusal);
}

/* ---- results ---------------------------------------------------------------------------------- */

uint32_t call_step(const struct call_run *run, uint32_t step)
{
    tr_assert(step < CALL_STEPS_MAX);
    return run->first[step];
}

uint32_t call_rows(const struct call_run *run, uint32_t step)
{
    uint32_t at = call_step(run, step);

    return at == NO_STEP ? 0 : sql_unit_rows(run->unit, at);
}

int64_t call_int(const struct call_run *run, uint32_t step, uint32_t column)
{
    return sql_row_int(run->unit, call_step(run, step), 0, column);
}

struct span call_bytes(const struct call_run *run, uint32_t step, uint32_t column)
{
    return sql_row_bytes(run->unit, call_step(run, step), 0, column);
}

int64_t call_changed(const struct call_run *run, uint32_t step)
{
    uint32_t at = call_step(run, step);
    int64_t changed = 0;

    for (uint32_t i = 0; at != NO_STEP && i < run->repeats[step]; i++)
        changed += sql_unit_changed(run->unit, at + i);
    return changed;
}

/* Find the repetition that a row of a FROM_ALL list is in. Rows are asked for in order, so this
 * goes on from the last one. */
static void seek_row(struct call_run *run, const struct field *list, uint32_t row)
{
    uint32_t first = call_step(run, list->step);

    tr_assert(first != NO_STEP);
    if (run->seek.list != list || run->seek.row > row) {
        memset(&run->seek, 0, sizeof run->seek);
        run->seek.list = list;
    }
    run->seek.repeat_row += row - run->seek.row;
    run->seek.row = row;
    while (run->seek.repeat_row >= sql_unit_rows(run->unit, first + run->seek.repeat)) {
        run->seek.repeat_row -= sql_unit_rows(run->unit, first + run->seek.repeat);
        run->seek.repeat++;
        tr_assert(run->seek.repeat < run->repeats[list->step]);
    }
}

static struct field_value value_of_column(
    struct call_run *run, const struct field_source *source, const struct field *field)
{
    const struct field *list = source->list;

    if (list == NULL)
        return field_of_cell(run->unit, field, call_step(run, field->step), 0);
    if (list->from == FROM_EACH)
        return field_of_cell(run->unit, field, call_step(run, list->step) + source->row, 0);
    if (list->from != FROM_ALL)
        return field_of_cell(run->unit, field, call_step(run, list->step), source->row);
    seek_row(run, list, source->row);
    return field_of_cell(
        run->unit, field, call_step(run, list->step) + run->seek.repeat, run->seek.repeat_row);
}

static struct span item_of(
    struct call_run *run, const struct field_source *source, const struct param_value *param)
{
    uint32_t item = source->row;

    tr_assert(source->list != NULL);
    if (source->list->from == FROM_ALL) {
        seek_row(run, source->list, source->row);
        item = run->seek.repeat;
    }
    tr_assert(param != NULL && item < param->count);
    return param->items[item];
}

static struct field_value call_get(const struct field_source *source, const struct field *field)
{
    struct call_run *run = source->data;
    const struct param_value *param = field->param == NULL ? NULL : call_value(run, field->param);
    struct field_value value = { .is_there = true };

    switch (field->from) {
    case FROM_COLUMN:
        return value_of_column(run, source, field);
    case FROM_LAST_ROW:
        return field_of_cell(
            run->unit, field, call_step(run, field->step), call_rows(run, field->step) - 1);
    case FROM_PARAM:
        tr_assert(param != NULL);
        value.number = param->number;
        value.bytes = param->text;
        value.is_there = field_is_number(field->type) ? !field->is_optional || param->is_given
                                                      : param->text.at != NULL;
        break;
    case FROM_ITEM:
        value.bytes = item_of(run, source, param);
        break;
    case FROM_CALLER:
        value.bytes = run->caller;
        break;
    case FROM_NOW:
        value.number = run->now_ms + field->number;
        break;
    case FROM_ID:
        tr_assert(run->has_id);
        value.bytes = (struct span){ run->id, sizeof run->id };
        break;
    case FROM_NUMBER:
        value.number = field->number;
        break;
    case FROM_CHANGED:
        for (uint32_t i = 0; i <= field->at; i++)
            value.number += call_changed(run, field->step + i);
        break;
    case FROM_COUNT:
        tr_assert(param != NULL);
        value.number = param->count;
        break;
    case FROM_HAS_ROWS:
        value.number =
            source->list != NULL && source->list->from == FROM_EACH
                ? sql_unit_rows(run->unit, call_step(run, source->list->step) + source->row) > 0
                : call_rows(run, field->step) > 0;
        break;
    default:
        tr_assert(false); /* a field must have a source */
    }
    return value;
}

static uint32_t call_count(const struct field_source *source, const struct field *list)
{
    const struct call_run *run = source->data;
    uint32_t rows = 0;

    tr_assert(source->list == NULL); /* a list inside a list is the work of a `put` */
    if (list->from == FROM_EACH)
        return run->repeats[list->step];
    if (list->from != FROM_ALL) {
        rows = call_rows(run, list->step);
        return list->number > 0 && rows > list->number ? (uint32_t)list->number : rows;
    }
    for (uint32_t i = 0; i < run->repeats[list->step]; i++)
        rows += sql_unit_rows(run->unit, call_step(run, list->step) + i);
    return rows;
}

void call_put_if_changed(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    if (call_changed(call_run_of(source), field->step) == field->number)
        field_put_json(writer, field->fields, source);
}

/* ---- answering -------------------------------------------------------------------------------- */

void call_respond(struct http_request *request, struct buffer *answer)
{
    if (answer->failed != 0)
        http_respond_lost(
            request, answer->failed, http_route(request)->method != HTTP_GET, "memory");
    else
        http_respond_buffer(request, 200, "application/json", answer);
    buffer_free(answer);
}

bool call_respond_instead(
    struct call_run *run, unsigned status, const char *media, struct buffer *answer)
{
    db_query_release(run->request);
    if (answer->failed != 0)
        http_respond_shed(run->request, 503, 1, "memory");
    else
        http_respond_buffer(run->request, status, media, answer);
    buffer_free(answer);
    return false;
}

void call_answer(struct call_run *run)
{
    struct field_source source = { .get = call_get, .count = call_count, .data = run };
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    tr_assert(run->call->fields != NULL);
    if (run->call->answer_size != NULL) /* at once, not by doubling; a failure sticks */
        (void)buffer_reserve(&answer, run->call->answer_size(run));
    json_put_object(&writer, NULL);
    field_put_json(&writer, run->call->fields, &source);
    json_put_end(&writer);
    if (run->call->after != NULL)
        run->call->after(run);
    db_query_release(run->request);
    run->unit = NULL;
    if (!run->call->is_large || call_may_answer(run->service, answer.size)) {
        call_respond(run->request, &answer);
        return;
    }
    buffer_free(&answer);
    http_respond_shed(run->request, 503, 1, "answers");
}

static void call_finished(struct http_request *request, const struct tr_event *event)
{
    struct call_run *run = db_query_data(request);
    const struct step *steps = run->call->steps;

    run->unit = db_query_any_result(request, event);
    if (run->call->count != NULL)
        run->call->count(run, run->unit != NULL);
    if (run->unit == NULL)
        return;
    if (sql_unit_status(run->unit) != 0) {
        refuse_failed(run, run->unit);
        return;
    }
    for (uint32_t i = 0; is_step(&steps[i]); i++)
        if (steps[i].missing.status != 0 && run->first[i] != NO_STEP && call_rows(run, i) == 0) {
            call_refuse_with(run, &steps[i].missing);
            return;
        }
    if (run->call->decide == NULL || run->call->decide(run))
        call_answer(run);
}

/* ---- running ---------------------------------------------------------------------------------- */

static void bind_bytes(struct sql_unit *unit, bool is_blob, struct span bytes)
{
    if (bytes.at == NULL)
        sql_unit_null(unit);
    else if (is_blob)
        sql_unit_blob(unit, bytes.at, bytes.size);
    else
        sql_unit_text(unit, bytes);
}

/* `word` is the name of a parameter, which .number or .text may follow. */
static void bind_param(const struct call_run *run, struct sql_unit *unit, struct span word)
{
    const struct param_value *value;
    enum param_type type;
    struct span name;

    (void)span_cut(&word, '.', &name);
    value = value_named(run, name);
    type = run->call->params[value - run->values].type;
    if (word.at == NULL
            ? type == PARAM_INT || type == PARAM_BOOL || type == PARAM_CHOICE || type == PARAM_TIME
            : span_is(word, "number"))
        sql_unit_int(unit, value->number);
    else
        bind_bytes(unit, type == PARAM_BYTES || type == PARAM_HEX, value->text);
}

static void bind_item(
    const struct call_run *run, struct sql_unit *unit, const char *list, uint32_t item)
{
    const struct param_value *value = call_value(run, list);
    enum param_type type = run->call->params[value - run->values].type;

    tr_assert(item < value->count);
    bind_bytes(unit, type == PARAM_HEXES || type == PARAM_JSON, value->items[item]);
}

/* Bind the value that a word of `args` stands for, as struct step lists them. */
static void bind_word(struct call_run *run, struct sql_unit *unit, const char *each, uint32_t item,
    struct span word, const int64_t **numbers)
{
    bool is_plus = word.size > 2 && word.at[word.size - 1] == '#';
    int64_t now_ms = run->now_ms;
    char id[CALL_ID_SIZE];

    if (span_is(word, "#"))
        sql_unit_int(unit, *(*numbers)++);
    else if (word.at[0] == '\'')
        sql_unit_text(unit, (struct span){ word.at + 1, word.size - 2 });
    else if (word.at[0] != '@')
        bind_param(run, unit, word);
    else if (span_is(word, "@caller"))
        sql_unit_text(unit, run->caller);
    else if (span_starts(word, "@now_s"))
        sql_unit_int(unit, now_ms / 1000 + (is_plus ? *(*numbers)++ : 0));
    else if (span_starts(word, "@now"))
        sql_unit_int(unit, now_ms + (is_plus ? *(*numbers)++ : 0));
    else if (span_is(word, "@item"))
        bind_item(run, unit, each, item);
    else if (span_is(word, "@index"))
        sql_unit_int(unit, item);
    else if (span_is(word, "@id"))
        sql_unit_text(unit, call_id(run));
    else if (span_is(word, "@null"))
        sql_unit_null(unit);
    else {
        tr_assert(span_is(word, "@random_id"));
        call_new_id(run->service->env, id);
        sql_unit_text(unit, (struct span){ id, sizeof id });
    }
}

static void add_step(struct call_run *run, struct sql_unit *unit, uint32_t index,
    const struct sql_statement *statement)
{
    const struct step *step = &run->call->steps[index];
    uint32_t repeats = step->each == NULL ? 1 : call_value(run, step->each)->count;

    run->first[index] = unit->step_count;
    run->repeats[index] = repeats;
    if (step->add != NULL) {
        step->add(run, unit);
        return;
    }
    for (uint32_t item = 0; item < repeats; item++) {
        struct span words = span_of(step->args), word;
        const int64_t *numbers = step->numbers;

        sql_unit_step(unit, statement, step->rows);
        while (span_cut(&words, ' ', &word))
            bind_word(run, unit, step->each, item, word, &numbers);
    }
}

static bool call_is_read(const struct call_run *run)
{
    return run->call->unit == CALL_READS ||
           (run->call->unit == CALL_BY_METHOD && http_route(run->request)->method == HTTP_GET);
}

static uint64_t unit_key(const struct call_run *run)
{
    if (run->call->key != 0)
        return run->call->key;
    return call_key(run->call->role_of == NULL ? run->caller : run->values[0].text);
}

static void add_role_steps(const struct call_run *run, struct sql_unit *unit)
{
    const struct role_check *check = run->call->role_of;
    const struct sql_statement *const steps[] = { &check->exists, &check->is_member,
        &check->is_enough };
    struct span id = run->values[0].text;

    tr_assert(id.at != NULL);
    for (uint32_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        sql_unit_step(unit, steps[i], 1);
        sql_unit_text(unit, id);
        if (i > 0)
            sql_unit_text(unit, run->caller);
        if (i > 1)
            sql_unit_int(unit, run->call->role);
    }
}

static void build_unit(struct call_run *run, struct sql_unit *unit)
{
    const struct step *step = run->call->steps;

    if (run->call->role_of != NULL)
        add_role_steps(run, unit);
    for (uint32_t i = 0; is_step(step); i++, step++) {
        tr_assert(i < CALL_STEPS_MAX);
        run->first[i] = NO_STEP;
        run->repeats[i] = 0;
        if (step->unless != NULL && step->unless(run))
            continue;
        if (step->when == NULL || step->when(run))
            add_step(run, unit, i, step->statement);
        else if (step->otherwise != NULL)
            add_step(run, unit, i, step->otherwise);
    }
}

void call_start(struct call_run *run, const struct call *call)
{
    bool is_read;
    struct sql_unit *unit;

    tr_assert(run->unit == NULL); /* call_next frees the one before */
    run->call = call;
    is_read = call_is_read(run);
    unit = sql_unit_create(is_read ? 0 : unit_key(run));
    if (unit != NULL) {
        if (!is_read)
            auth_consume(unit, auth_claims_of(run->request));
        build_unit(run, unit);
    }
    if (!db_query_start(run->request, run->service, unit, is_read, call_finished, run, NULL) &&
        call->count != NULL)
        call->count(run, false);
}

void call_next(struct call_run *run, const struct call *call)
{
    db_query_release(run->request);
    run->unit = NULL;
    call_start(run, call);
}

/* False: the request has been answered, or will be. */
static bool call_read(struct call_run *run)
{
    static const struct param none[] = { PARAM_LAST };
    struct param_reader reader = {
        .request = run->request, .now_ms = run->now_ms, .is_rest = run->service->is_rest
    };
    const struct call *call = run->call;
    bool is_good = true;

    if (call->enter != NULL && !call->enter(run))
        return false;
    if (http_route(run->request)->method == HTTP_GET)
        param_read_query(&reader, call->params == NULL ? none : call->params, run->values);
    else if (call->params != NULL)
        param_read_body(&reader, call->params, run->values);
    if (param_reader_refuse(&reader))
        return false;
    if (call->check != NULL) {
        run->expect = &reader.expect;
        is_good = call->check(run);
        run->expect = NULL;
        if (is_good && param_reader_refuse(&reader))
            return false;
    }
    param_reader_fini(&reader);
    return is_good;
}

void call_begin(
    struct http_request *request, const struct call_service *service, const struct call *call)
{
    struct call_run *run = http_alloc(request, sizeof *run);
    const struct auth_claims *claims = auth_claims_of(request);

    tr_assert(call != NULL);
    if (run == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    run->call = call;
    run->request = request;
    run->service = service;
    if (claims != NULL) /* else it is an operator, on the admin listener */
        run->caller = claims->issuer;
    run->now_ms = call_now_ms(run->service);
    if (call_read(run))
        call_start(run, run->call);
}
