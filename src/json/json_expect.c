/* SPDX-License-Identifier: Apache-2.0 */
#include "json/json_expect.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define NO_INDEX SIZE_MAX

/* ---- messages -------------------------------------------------------------------------------- */

/* Append to a message; what does not fit is cut off. */
__attribute__((format(printf, 2, 3))) static void add(
    char message[JSON_MESSAGE_BYTES], const char *format, ...)
{
    size_t used = strlen(message);
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(message + used, JSON_MESSAGE_BYTES - used, format, arguments);
    va_end(arguments);
}

static void add_step(char message[JSON_MESSAGE_BYTES], const char *name, size_t index)
{
    if (name == NULL)
        return;
    add(message, "%s%s", message[0] == '\0' ? "" : ".", name);
    if (index != NO_INDEX)
        add(message, "[%zu]", index);
}

/* members[3].device: outermost first, so it calls itself on the way; as deep as the handler's own
 * nesting of expects. */
static void add_path(char message[JSON_MESSAGE_BYTES], const struct json_expect *expect)
{
    if (expect->parent != NULL)
        add_path(message, expect->parent);
    add_step(message, expect->name, expect->index);
}

/* What is wrong: `name` NULL means the object itself. */
struct place {
    const char *name;
    size_t index;
};

__attribute__((format(printf, 3, 4))) static void fail(
    struct json_expect *expect, struct place place, const char *format, ...)
{
    char message[JSON_MESSAGE_BYTES] = "", what[JSON_MESSAGE_BYTES];
    va_list arguments;

    if (expect->failed)
        return;
    va_start(arguments, format);
    (void)vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    add_path(message, expect);
    add_step(message, place.name, place.index);
    add(message, "%s %s", message[0] == '\0' ? "the body" : "", what);
    for (; expect != NULL; expect = expect->parent) {
        if (expect->failed)
            continue;
        expect->failed = true;
        memcpy(expect->message, message, sizeof expect->message);
    }
}

void json_expect_fail(struct json_expect *expect, const char *name, const char *what)
{
    fail(expect, (struct place){ name, NO_INDEX }, "%s", what);
}

/* ---- objects --------------------------------------------------------------------------------- */

static void check_object(struct json_expect *expect)
{
    if (json_kind(expect->object) == JSON_OBJECT)
        return;
    fail(expect, (struct place){ NULL, NO_INDEX }, "must be an object");
    expect->object = NULL;
}

struct json_expect json_expect(const struct json *body)
{
    struct json_expect expect = { .object = body, .index = NO_INDEX };

    check_object(&expect);
    return expect;
}

struct json_expect json_expect_item(
    struct json_expect *parent, const char *name, size_t index, const struct json *value)
{
    struct json_expect expect = { .object = value, .parent = parent, .name = name, .index = index };

    check_object(&expect);
    return expect;
}

struct json_expect json_expect_member(struct json_expect *parent, const char *name)
{
    return json_expect_item(parent, name, NO_INDEX, json_get(parent->object, name));
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool is_absent(const struct json *value)
{
    return json_kind(value) <= JSON_NULL;
}

static struct span check_string(struct json_expect *expect, struct place place,
    const struct json *value, size_t bytes_min, size_t bytes_max)
{
    struct span text;

    if (json_string(value, &text) && text.size >= bytes_min && text.size <= bytes_max)
        return text;
    if (bytes_min == bytes_max)
        fail(expect, place, "must be a string of %zu bytes", bytes_max);
    else if (bytes_min == 0)
        fail(expect, place, "must be a string of at most %zu bytes", bytes_max);
    else
        fail(expect, place, "must be a string of %zu to %zu bytes", bytes_min, bytes_max);
    return (struct span){ "", 0 };
}

static int64_t check_int(struct json_expect *expect, struct place place, const struct json *value,
    int64_t min, int64_t max)
{
    int64_t integer;

    if (json_int(value, &integer) && integer >= min && integer <= max)
        return integer;
    if (min == INT64_MIN && max == INT64_MAX)
        fail(expect, place, "must be an integer of 64 bits");
    else if (max == INT64_MAX)
        fail(expect, place, "must be an integer of at least %lld", (long long)min);
    else
        fail(expect, place, "must be an integer from %lld to %lld", (long long)min, (long long)max);
    return min;
}

static bool check_bool(struct json_expect *expect, struct place place, const struct json *value)
{
    bool truth;

    if (json_bool(value, &truth))
        return truth;
    fail(expect, place, "must be true or false");
    return false;
}

static const struct json *check_array(struct json_expect *expect, struct place place,
    const struct json *value, size_t count_min, size_t count_max)
{
    size_t count = json_count(value);

    if (json_kind(value) == JSON_ARRAY && count >= count_min && count <= count_max)
        return value;
    if (count_min == 0)
        fail(expect, place, "must be an array of at most %zu items", count_max);
    else
        fail(expect, place, "must be an array of %zu to %zu items", count_min, count_max);
    return NULL;
}

static struct place member(const char *name)
{
    return (struct place){ name, NO_INDEX };
}

struct span json_need_string(
    struct json_expect *expect, const char *name, size_t bytes_min, size_t bytes_max)
{
    return check_string(expect, member(name), json_get(expect->object, name), bytes_min, bytes_max);
}

int64_t json_need_int(struct json_expect *expect, const char *name, int64_t min, int64_t max)
{
    return check_int(expect, member(name), json_get(expect->object, name), min, max);
}

bool json_need_bool(struct json_expect *expect, const char *name)
{
    return check_bool(expect, member(name), json_get(expect->object, name));
}

const struct json *json_need_array(
    struct json_expect *expect, const char *name, size_t count_min, size_t count_max)
{
    return check_array(expect, member(name), json_get(expect->object, name), count_min, count_max);
}

struct span json_may_string(
    struct json_expect *expect, const char *name, size_t bytes_min, size_t bytes_max)
{
    const struct json *value = json_get(expect->object, name);

    if (is_absent(value))
        return (struct span){ NULL, 0 };
    return check_string(expect, member(name), value, bytes_min, bytes_max);
}

const struct json *json_may_array(
    struct json_expect *expect, const char *name, size_t count_min, size_t count_max)
{
    const struct json *value = json_get(expect->object, name);

    if (is_absent(value))
        return NULL;
    return check_array(expect, member(name), value, count_min, count_max);
}

int64_t json_may_int(
    struct json_expect *expect, const char *name, int64_t min, int64_t max, int64_t fallback)
{
    const struct json *value = json_get(expect->object, name);

    return is_absent(value) ? fallback : check_int(expect, member(name), value, min, max);
}

bool json_may_bool(struct json_expect *expect, const char *name, bool fallback)
{
    const struct json *value = json_get(expect->object, name);

    return is_absent(value) ? fallback : check_bool(expect, member(name), value);
}

struct span json_item_string(struct json_expect *expect, const char *name, size_t index,
    const struct json *value, size_t bytes_min, size_t bytes_max)
{
    return check_string(expect, (struct place){ name, index }, value, bytes_min, bytes_max);
}
