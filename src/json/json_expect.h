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
 *         return answer_bad_request(expect.message);   dids[3] must be a string of 8 to 256 bytes
 *
 * The first mistake sticks; later reads still answer, with something harmless (empty, the minimum,
 * false, NULL), so a handler checks once. Messages name members and limits, never contents.
 *
 * need: must be there. may: may be missing or null, then the fallback is the answer; but if it is
 * there it must be right. */
#ifndef JSON_JSON_EXPECT_H
#define JSON_JSON_EXPECT_H

#include "json/json.h"

#define JSON_MESSAGE_BYTES 200

struct json_expect {
    const struct json *object;
    struct json_expect *parent; /* that the message goes to as well; NULL for the body itself */
    const char *name;           /* of this object in its parent */
    size_t index;               /* in the array of that name; SIZE_MAX if it is not in one */
    bool failed;
    char message[JSON_MESSAGE_BYTES]; /* "" until something fails */
};

/* The body as a whole; fails at once if it is not an object. */
struct json_expect json_expect(const struct json *body);
/* An object inside: item `index` of the array `name`. `value` is borrowed, `parent` must outlive
 * the result and hears of its failures. Fails at once if it is not an object. */
struct json_expect json_expect_item(
    struct json_expect *parent, const char *name, size_t index, const struct json *value);
/* The member `name`, which must be an object. */
struct json_expect json_expect_member(struct json_expect *parent, const char *name);

struct span json_need_string(
    struct json_expect *expect, const char *name, size_t bytes_min, size_t bytes_max);
int64_t json_need_int(struct json_expect *expect, const char *name, int64_t min, int64_t max);
bool json_need_bool(struct json_expect *expect, const char *name);
const struct json *json_need_array(
    struct json_expect *expect, const char *name, size_t count_min, size_t count_max);

/* The fallback of these is an absent span, {NULL, 0}, and NULL. */
struct span json_may_string(
    struct json_expect *expect, const char *name, size_t bytes_min, size_t bytes_max);
const struct json *json_may_array(
    struct json_expect *expect, const char *name, size_t count_min, size_t count_max);
int64_t json_may_int(
    struct json_expect *expect, const char *name, int64_t min, int64_t max, int64_t fallback);
bool json_may_bool(struct json_expect *expect, const char *name, bool fallback);

/* One item of the array `name`. */
struct span json_item_string(struct json_expect *expect, const char *name, size_t index,
    const struct json *value, size_t bytes_min, size_t bytes_max);

/* Fail with a text of the handler's own: "<path of name> <what>". What has failed before stays. */
void json_expect_fail(struct json_expect *expect, const char *name, const char *what);

#endif
