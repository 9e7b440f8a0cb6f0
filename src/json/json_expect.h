/* SPDX-License-Identifier: Apache-2.0 */
/* json_expect.h: read a request body member by member and say what is wrong with it.
 *
 *     struct json_expect expect = json_expect(json_root(&doc));
 *     struct span convo = json_need_string(&expect, "convoId", 1, 64);
 *     int64_t epoch = json_may_int(&expect, "epoch", 0, INT64_MAX, -1);
 *     const struct json *dids = json_need_array(&expect, "dids", 1, 100);
 *     size_t index = 0;
 *
 *     for (struct json_iter it = json_iterate(dids); json_next(&it); index++)
 *         use(json_item_string(&expect, "dids", index, it.value, 8, 256));
 *     if (expect.failed)
 *         return respond_bad_request(expect.message);
 *
 * A message is one sentence that a client may see. It names the member with its whole path, and it
 * may repeat an integer or a length, but never a text from the body:
 *
 *     missing        convoId is missing.
 *     wrong type     dids[3] must be a string.
 *     out of range   limit is 500; the most is 100.
 *                    dids[3] is 300 bytes; the most is 256.
 *                    dids must not be empty.
 *
 * The first mistake is kept. A failed read returns a harmless value (an empty string, the minimum,
 * false, NULL), and later reads work as before, so a handler checks `failed` once at the end.
 *
 * json_need_* requires the member. json_may_* returns its fallback if the member is missing or
 * null; a member that is present must be valid. */
#ifndef JSON_JSON_EXPECT_H
#define JSON_JSON_EXPECT_H

#include "json/json.h"

#define JSON_MESSAGE_BYTES 200

struct json_expect {
    const struct json *object;
    struct json_expect *parent; /* gets the message too; NULL for the body itself */
    const char *name;           /* of this object in its parent */
    size_t index;               /* in the array `name`; SIZE_MAX for an object outside an array */
    bool failed;
    char message[JSON_MESSAGE_BYTES]; /* "" until a read fails */
};

/* Start with the whole body. Fails at once if it is not an object. */
struct json_expect json_expect(const struct json *body);
/* Descend into an object: `value`, which is item `index` of the array `name`. `value` is borrowed.
 * `parent` must outlive the result and fails with it. Fails at once if it is not an object. */
struct json_expect json_expect_item(
    struct json_expect *parent, const char *name, size_t index, const struct json *value);
/* Descend into the member `name`. Fails at once if it is missing or not an object. */
struct json_expect json_expect_member(struct json_expect *parent, const char *name);

struct span json_need_string(
    struct json_expect *expect, const char *name, size_t bytes_min, size_t bytes_max);
int64_t json_need_int(struct json_expect *expect, const char *name, int64_t min, int64_t max);
bool json_need_bool(struct json_expect *expect, const char *name);
const struct json *json_need_array(
    struct json_expect *expect, const char *name, size_t count_min, size_t count_max);

/* The fallback of json_may_string is an absent span, {NULL, 0}; that of json_may_array is NULL. */
struct span json_may_string(
    struct json_expect *expect, const char *name, size_t bytes_min, size_t bytes_max);
const struct json *json_may_array(
    struct json_expect *expect, const char *name, size_t count_min, size_t count_max);
int64_t json_may_int(
    struct json_expect *expect, const char *name, int64_t min, int64_t max, int64_t fallback);
bool json_may_bool(struct json_expect *expect, const char *name, bool fallback);

/* Read one item of the array `name`: `value`, which stands at `index`. */
struct span json_item_string(struct json_expect *expect, const char *name, size_t index,
    const struct json *value, size_t bytes_min, size_t bytes_max);

/* Fail with a sentence of the handler's own, "<path of name> <format>.", unless a read has failed
 * before. `format` is a verb phrase without its full stop: "must be hex". `name` NULL means the
 * object itself, which is "The body" at the top. */
__attribute__((format(printf, 3, 4))) void json_expect_fail(
    struct json_expect *expect, const char *name, const char *format, ...);

#endif
