/* SPDX-License-Identifier: Apache-2.0 */
/* json_expect.c: typed reads of JSON members. A read that fails keeps a sentence with the path of
 * the member, unless an earlier read has failed. json_expect.h has the rules and examples. */
#include "json/json_expect.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define NO_INDEX SIZE_MAX

/* ---- messages -------------------------------------------------------------------------------- */

/* Append to a message. The end of a text that does not fit is cut off. */
__attribute__((format(printf, 2, 3))) static void message_add(
    char message[JSON_MESSAGE_BYTES], const char *format, ...)
{
    size_t used = strlen(message);
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(message + used, JSON_MESSAGE_BYTES - used, format, arguments);
    va_end(arguments);
}

static void message_add_step(char message[JSON_MESSAGE_BYTES], const char *name, size_t index)
{
    if (name == NULL)
        return;
    message_add(message, "%s%s", message[0] == '\0' ? "" : ".", name);
    if (index != NO_INDEX)
        message_add(message, "[%zu]", index);
}

/* Append a path like members[3].device. Recurses to the outermost object first; the depth is the
 * number of json_expect structs that the handler nests. */
static void message_add_path(char message[JSON_MESSAGE_BYTES], const struct json_expect *expect)
{
    if (expect->parent != NULL)
        message_add_path(message, expect->parent);
    message_add_step(message, expect->name, expect->index);
}

/* The member that a message is about. `name` NULL means the object itself. */
struct place {
    const char *name;
    size_t index;
};

/* Keep the sentence "<path> <what>." as the first mistake of the object and of its parents. */
__attribute__((format(printf, 3, 0))) static void expect_fail_list(
    struct json_expect *expect, struct place place, const char *format, va_list arguments)
{
    char message[JSON_MESSAGE_BYTES] = "", what[JSON_MESSAGE_BYTES];

    if (expect->failed)
        return;
    (void)vsnprintf(what, sizeof what, format, arguments);
    message_add_path(message, expect);
    message_add_step(message, place.name, place.index);
    message_add(message, "%s %s.", message[0] == '\0' ? "The body" : "", what);
    for (; expect != NULL; expect = expect->parent) {
        if (expect->failed)
            continue;
        expect->failed = true;
        memcpy(expect->message, message, sizeof expect->message);
    }
}

__attribute__((format(printf, 3, 4))) static void expect_fail(
    struct json_expect *expect, struct place place, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    expect_fail_list(expect, place, format, arguments);
    va_end(arguments);
}

static struct place place_of(const char *name)
{
    return (struct place){ name, NO_INDEX };
}

void json_expect_fail(struct json_expect *expect, const char *name, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    expect_fail_list(expect, place_of(name), format, arguments);
    va_end(arguments);
}

/* Fail because the value is missing or has the wrong type. `kind` is "a string", "an integer", … */
static void expect_fail_kind(
    struct json_expect *expect, struct place place, const struct json *value, const char *kind)
{
    if (value == NULL)
        expect_fail(expect, place, "is missing");
    else
        expect_fail(expect, place, "must be %s", kind);
}

/* ---- objects --------------------------------------------------------------------------------- */

static void check_object(struct json_expect *expect)
{
    if (json_kind(expect->object) == JSON_OBJECT)
        return;
    expect_fail_kind(expect, place_of(NULL), expect->object, "an object");
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

/* A count and its bounds, in words: `verb` is "is" or "has", `unit` is "byte" or "item". */
struct amount {
    const char *verb;
    const char *unit;
    size_t count;
    size_t min;
    size_t max;
};

/* True if the count is within its bounds. */
static bool check_amount(struct json_expect *expect, struct place place, struct amount amount)
{
    const char *plural = amount.count == 1 ? "" : "s";

    if (amount.count >= amount.min && amount.count <= amount.max)
        return true;
    if (amount.count == 0)
        expect_fail(expect, place, "must not be empty");
    else if (amount.min == amount.max)
        expect_fail(expect, place, "%s %zu %s%s; there must be exactly %zu", amount.verb,
            amount.count, amount.unit, plural, amount.max);
    else
        expect_fail(expect, place, "%s %zu %s%s; the %s is %zu", amount.verb, amount.count,
            amount.unit, plural, amount.count < amount.min ? "least" : "most",
            amount.count < amount.min ? amount.min : amount.max);
    return false;
}

static struct span check_string(struct json_expect *expect, struct place place,
    const struct json *value, size_t bytes_min, size_t bytes_max)
{
    struct span text;

    if (!json_string(value, &text))
        expect_fail_kind(expect, place, value, "a string");
    else if (check_amount(
                 expect, place, (struct amount){ "is", "byte", text.size, bytes_min, bytes_max }))
        return text;
    return (struct span){ "", 0 };
}

/* Return true for an integer that does not fit int64_t: the parser keeps the digits of such a
 * number. */
static bool is_huge_integer(const struct json *value, bool *ret_negative)
{
    struct span digits;

    if (!json_digits(value, &digits))
        return false;
    for (size_t i = 0; i < digits.size; i++)
        if (digits.at[i] == '.' || digits.at[i] == 'e' || digits.at[i] == 'E')
            return false;
    *ret_negative = digits.at[0] == '-';
    return true;
}

static int64_t check_int(struct json_expect *expect, struct place place, const struct json *value,
    int64_t min, int64_t max)
{
    int64_t integer;
    bool negative;

    if (json_int(value, &integer)) {
        if (integer >= min && integer <= max)
            return integer;
        expect_fail(expect, place, "is %lld; the %s is %lld", (long long)integer,
            integer < min ? "least" : "most", (long long)(integer < min ? min : max));
    } else if (is_huge_integer(value, &negative)) {
        expect_fail(expect, place, "is too %s; the %s is %lld", negative ? "small" : "large",
            negative ? "least" : "most", (long long)(negative ? min : max));
    } else {
        expect_fail_kind(expect, place, value, "an integer");
    }
    return min;
}

static bool check_bool(struct json_expect *expect, struct place place, const struct json *value)
{
    bool truth;

    if (json_bool(value, &truth))
        return truth;
    expect_fail_kind(expect, place, value, "true or false");
    return false;
}

static const struct json *check_array(struct json_expect *expect, struct place place,
    const struct json *value, size_t count_min, size_t count_max)
{
    if (json_kind(value) != JSON_ARRAY)
        expect_fail_kind(expect, place, value, "an array");
    else if (check_amount(expect, place,
                 (struct amount){ "has", "item", json_count(value), count_min, count_max }))
        return value;
    return NULL;
}

struct span json_need_string(
    struct json_expect *expect, const char *name, size_t bytes_min, size_t bytes_max)
{
    return check_string(
        expect, place_of(name), json_get(expect->object, name), bytes_min, bytes_max);
}

int64_t json_need_int(struct json_expect *expect, const char *name, int64_t min, int64_t max)
{
    return check_int(expect, place_of(name), json_get(expect->object, name), min, max);
}

bool json_need_bool(struct json_expect *expect, const char *name)
{
    return check_bool(expect, place_of(name), json_get(expect->object, name));
}

const struct json *json_need_array(
    struct json_expect *expect, const char *name, size_t count_min, size_t count_max)
{
    return check_array(
        expect, place_of(name), json_get(expect->object, name), count_min, count_max);
}

struct span json_may_string(
    struct json_expect *expect, const char *name, size_t bytes_min, size_t bytes_max)
{
    const struct json *value = json_get(expect->object, name);

    if (is_absent(value))
        return (struct span){ NULL, 0 };
    return check_string(expect, place_of(name), value, bytes_min, bytes_max);
}

const struct json *json_may_array(
    struct json_expect *expect, const char *name, size_t count_min, size_t count_max)
{
    const struct json *value = json_get(expect->object, name);

    if (is_absent(value))
        return NULL;
    return check_array(expect, place_of(name), value, count_min, count_max);
}

int64_t json_may_int(
    struct json_expect *expect, const char *name, int64_t min, int64_t max, int64_t fallback)
{
    const struct json *value = json_get(expect->object, name);

    return is_absent(value) ? fallback : check_int(expect, place_of(name), value, min, max);
}

bool json_may_bool(struct json_expect *expect, const char *name, bool fallback)
{
    const struct json *value = json_get(expect->object, name);

    return is_absent(value) ? fallback : check_bool(expect, place_of(name), value);
}

struct span json_item_string(struct json_expect *expect, const char *name, size_t index,
    const struct json *value, size_t bytes_min, size_t bytes_max)
{
    return check_string(expect, (struct place){ name, index }, value, bytes_min, bytes_max);
}
