/* SPDX-License-Identifier: Apache-2.0 */
/* oracle_cjson.c: cJSON must accept every text that this parser accepts, and read the same values.
 * (The reverse does not hold: cJSON accepts control characters, broken UTF-8 and odd numbers.) */
#include <cjson/cJSON.h>
#include <math.h>

#include "check.h"
#include "generate.h"
#include "json/json.h"

#define DIGITS_MAX 60 /* cJSON reads 63 characters of a number */

/* cJSON's strings end at a zero byte, and its numbers have a length: leave such texts out. */
static bool is_comparable(const struct json_doc *doc)
{
    for (size_t i = 0; i < doc->count; i++) {
        const struct json *cell = &doc->cells[i];

        if (cell->kind == JSON_STRING && memchr(cell->as.text, 0, cell->size) != NULL)
            return false;
        if (cell->kind == JSON_REAL && cell->size > DIGITS_MAX)
            return false;
    }
    return true;
}

static void compare(const struct json *ours, const cJSON *theirs);

static void compare_items(const struct json *ours, const cJSON *theirs)
{
    const cJSON *child = theirs->child;

    for (struct json_iter it = json_iterate(ours); json_next(&it); child = child->next) {
        CHECK(child != NULL);
        if (it.keyed)
            CHECK(span_is(it.key, child->string));
        compare(it.value, child);
    }
    CHECK(child == NULL);
}

static void compare(const struct json *ours, const cJSON *theirs)
{
    struct span text;
    double real;
    bool truth;

    switch (json_kind(ours)) {
    case JSON_NULL:
        CHECK(cJSON_IsNull(theirs));
        return;
    case JSON_BOOL:
        CHECK(json_bool(ours, &truth) && (truth ? cJSON_IsTrue(theirs) : cJSON_IsFalse(theirs)));
        return;
    case JSON_INT:
    case JSON_REAL:
        CHECK(cJSON_IsNumber(theirs));
        if (json_double(ours, &real))
            CHECK_MSG(real == theirs->valuedouble, "%.17g and %.17g", real, theirs->valuedouble);
        else
            CHECK(isinf(theirs->valuedouble));
        return;
    case JSON_STRING:
        CHECK(cJSON_IsString(theirs));
        CHECK(json_string(ours, &text) && span_is(text, theirs->valuestring));
        return;
    case JSON_ARRAY:
        CHECK(cJSON_IsArray(theirs));
        compare_items(ours, theirs);
        return;
    case JSON_OBJECT:
        CHECK(cJSON_IsObject(theirs));
        compare_items(ours, theirs);
        return;
    case JSON_NONE:
    case JSON_BYTES:
    case JSON_LINK:
        break;
    }
    CHECK_MSG(false, "kind %d from a JSON text", (int)json_kind(ours));
}

/* Return true if this parser accepts the text. */
static bool compare_text(const struct buffer *text)
{
    struct json_doc doc = { .depth_max = JSON_DEPTH_MAX };
    int rc = json_parse_copy(&doc, (struct span){ text->bytes, text->size }, 0);

    if (rc == 0 && is_comparable(&doc)) {
        cJSON *theirs = cJSON_ParseWithLength(text->bytes, text->size);

        CHECK_MSG(theirs != NULL, "cJSON refuses: %.*s", (int)text->size, text->bytes);
        compare(json_root(&doc), theirs);
        cJSON_Delete(theirs);
    }
    json_doc_free(&doc);
    return rc == 0;
}

TEST_LONG(oracle, cjson_reads_the_same_values, 120)
{
    uint64_t generated = 0, mutated = 0, accepted = 0;
    unsigned count = check_is_long() ? 1000000 : 20000;

    for (uint64_t seed; check_each_seed(&seed, count);) {
        struct buffer text = { 0 };
        struct base_random random;

        base_random_init(&random, seed);
        generate_json(&random, &text);
        CHECK_MSG(compare_text(&text), "we refuse: %.*s", (int)text.size, text.bytes);
        generated++;
        for (int i = 0; i < 4; i++, mutated++) {
            generate_mutation(&random, &text);
            accepted += compare_text(&text);
        }
        buffer_free(&text);
    }
    /* If all mutations were refused, or all accepted, the test would compare nothing. */
    if (generated > 1000)
        CHECK(accepted > mutated / 50 && accepted < mutated - mutated / 50);
}
