/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of the declared calls are sound. With TROUPE_CALLS=PATH the test writes them as JSON,
 * which test/integration/api_description.py compares with docs/api/delivery.yaml. */
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "services/delivery/api/calls.h"

static const char *const param_types[] = { [PARAM_TEXT] = "string",
    [PARAM_DEVICE] = "string",
    [PARAM_INT] = "integer",
    [PARAM_BOOL] = "boolean",
    [PARAM_CHOICE] = "string",
    [PARAM_TIME] = "string",
    [PARAM_BYTES] = "bytes",
    [PARAM_HEX] = "string",
    [PARAM_IDS] = "array",
    [PARAM_DIDS] = "array",
    [PARAM_HEXES] = "array",
    [PARAM_JSON] = "array",
    [PARAM_MLS] = "bytes",
    [PARAM_ANY] = "any" };
static const char *const field_types[] = { [FIELD_TEXT] = "string",
    [FIELD_INT] = "integer",
    [FIELD_BOOL] = "boolean",
    [FIELD_TIME_MS] = "string",
    [FIELD_TIME_S] = "string",
    [FIELD_BASE64] = "string",
    [FIELD_BYTES] = "bytes",
    [FIELD_HEX] = "string",
    [FIELD_CHOICE] = "string",
    [FIELD_NAMED] = "string",
    [FIELD_DOUBLE] = "number",
    [FIELD_OBJECT] = "object",
    [FIELD_LIST] = "array",
    [FIELD_MAP] = "map" };

static void put_choices(struct json_writer *writer, const char *const *choices)
{
    if (choices == NULL)
        return;
    json_put_array(writer, "choices");
    for (size_t i = 0; choices[i] != NULL; i++)
        json_put_text(writer, NULL, choices[i]);
    json_put_end(writer);
}

static void put_params(struct json_writer *writer, const struct param *params)
{
    json_put_array(writer, "params");
    for (size_t i = 0; params != NULL && params[i].type != PARAM_END; i++) {
        const struct param *param = &params[i];

        if ((param->flags & PARAM_HIDDEN) != 0)
            continue;
        CHECK(i < PARAMS_MAX && param->name != NULL);
        CHECK((param->type == PARAM_CHOICE) == (param->choices != NULL));
        for (size_t other = 0; other < i; other++)
            CHECK(strcmp(params[other].name, param->name) != 0);
        json_put_object(writer, NULL);
        json_put_text(writer, "name", param->name);
        json_put_text(writer, "type", param_types[param->type]);
        json_put_bool(writer, "required", (param->flags & PARAM_REQUIRED) != 0);
        json_put_int(writer, "min", param->min);
        json_put_int(writer, "max", param->max);
        json_put_bool(writer, "bounded", param->type == PARAM_INT);
        put_choices(writer, param->choices);
        json_put_end(writer);
    }
    json_put_end(writer);
}

/* A hook that writes members of its own describes them by its fields, in its place. */
static void put_fields(struct json_writer *writer, const struct field *fields, bool is_optional)
{
    for (const struct field *field = fields; field->type != FIELD_END; field++) {
        bool may_miss = is_optional || field->is_optional;

        if (field->type == FIELD_PUT) {
            CHECK(field->put != NULL && field->fields != NULL);
            put_fields(writer, field->fields, may_miss);
            continue;
        }
        CHECK((field->type == FIELD_CHOICE) <= (field->choices != NULL));
        json_put_object(writer, NULL);
        if (field->name != NULL)
            json_put_text(writer, "name", field->name);
        json_put_text(writer, "type", field_types[field->type]);
        json_put_bool(writer, "required", !may_miss);
        put_choices(writer, field->choices);
        if (field->type == FIELD_OBJECT || field->type == FIELD_LIST) {
            json_put_array(writer, "fields");
            put_fields(writer, field->fields, false);
            json_put_end(writer);
        }
        json_put_end(writer);
    }
}

/* A word without a mark is a parameter of the call. */
static void check_words(const struct call *call, const char *args)
{
    struct span words = span_of(args == NULL ? "@null" : args), word, name;

    while (span_cut(&words, ' ', &word)) {
        CHECK(word.size > 0);
        if (strchr("@#'", word.at[0]) == NULL) {
            CHECK(span_cut(&word, '.', &name));
            CHECK(param_find(call->params, name) >= 0);
        }
    }
}

static void check_steps(const struct call *call)
{
    for (size_t i = 0; call->steps[i].statement != NULL || call->steps[i].add != NULL; i++) {
        const struct step *step = &call->steps[i];
        const struct refusal *const refusals[] = { &step->refusal, &step->conflict,
            &step->missing };

        CHECK(i < CALL_STEPS_MAX);
        check_words(call, step->args);
        CHECK(step->each == NULL || param_find(call->params, span_of(step->each)) >= 0);
        for (size_t j = 0; j < 3; j++) {
            size_t size = refusals[j]->status == 0 ? 0 : strlen(refusals[j]->text);

            CHECK(refusals[j]->status == 0 || refusals[j]->status >= 400);
            CHECK(size == 0 || refusals[j]->text[size - 1] == '.');
        }
    }
}

TEST(calls, have_sound_tables)
{
    const struct service *service = &delivery_service;
    const char *path = getenv("TROUPE_CALLS");
    struct buffer out = { 0 };
    struct json_writer writer = json_writer(&out);
    size_t count = 0;
    FILE *file;

    json_put_object(&writer, NULL);
    for (size_t i = 0; i < service->route_count; i++) {
        const struct http_route *route = &service->routes[i];
        const struct call *call = route->handle != api_handle ? route->extra : NULL;
        const struct api_call *act_call = route->handle == api_handle ? route->extra : NULL;

        if (call == NULL && act_call == NULL)
            continue;
        count++;
        json_put_object(&writer, route->label);
        put_params(&writer, call != NULL ? call->params : act_call->params);
        if (call != NULL) {
            CHECK(call->fields != NULL);
            check_steps(call);
            json_put_array(&writer, "fields");
            put_fields(&writer, call->fields, false);
            json_put_end(&writer);
        } else {
            CHECK(act_call->type != NULL && (act_call->put == NULL || act_call->answer == NULL));
        }
        json_put_end(&writer);
    }
    json_put_end(&writer);
    CHECK(count >= 76);
    CHECK_EQ_INT(json_writer_end(&writer), 0);
    if (path != NULL) {
        file = fopen(path, "w");
        CHECK(file != NULL);
        CHECK_EQ_INT(fwrite(out.bytes, 1, out.size, file), out.size);
        CHECK_EQ_INT(fclose(file), 0);
    }
    buffer_free(&out);
}
