/* SPDX-License-Identifier: Apache-2.0 */
/* oracle_simdjson.c: this parser and simdjson must accept and refuse the same texts. simdjson
 * refuses integers beyond 64 bits and numbers beyond double, which this parser keeps as digits;
 * such texts are left out. */
#include "check.h"
#include "generate.h"
#include "json/json.h"
#include "simdjson_verdict.h"

/* True if the text has a number that simdjson cannot represent. */
static bool has_large_number(const struct json_doc *doc)
{
    double real;

    for (size_t i = 0; i < doc->count; i++) {
        const struct json *cell = &doc->cells[i];

        if (cell->kind != JSON_REAL)
            continue;
        if (!json_double(cell, &real))
            return true;
        if (memchr(cell->as.text, '.', cell->size) == NULL &&
            memchr(cell->as.text, 'e', cell->size) == NULL &&
            memchr(cell->as.text, 'E', cell->size) == NULL)
            return true;
    }
    return false;
}

/* Return true if this parser accepts the text. */
static bool compare_text(const struct buffer *text)
{
    struct json_doc doc = { .depth_max = JSON_DEPTH_MAX };
    int rc = json_parse_copy(&doc, (struct span){ text->bytes, text->size }, 0);
    enum simdjson_verdict theirs = simdjson_verdict(text->bytes, text->size);

    if (rc == 0 && theirs == SIMDJSON_REFUSES_NUMBER)
        CHECK_MSG(has_large_number(&doc), "simdjson refuses: %.*s", (int)text->size, text->bytes);
    else
        CHECK_MSG((rc == 0) == (theirs == SIMDJSON_ACCEPTS),
            "we %s, simdjson %s: %.*s (byte %zu: %s)", rc == 0 ? "accept" : "refuse",
            theirs == SIMDJSON_ACCEPTS ? "accepts" : "refuses", (int)text->size, text->bytes,
            doc.error.offset, rc == 0 ? "" : doc.error.text);
    json_doc_free(&doc);
    return rc == 0;
}

TEST_LONG(oracle, simdjson_has_the_same_verdicts, 120)
{
    uint64_t generated = 0, mutated = 0, accepted = 0;
    unsigned count = check_is_long() ? 1000000 : 20000;

    for (uint64_t seed; check_each_seed(&seed, count);) {
        struct buffer text = { 0 };
        struct base_random random;

        base_random_init(&random, seed ^ 0x51d);
        generate_json(&random, &text);
        CHECK_MSG(compare_text(&text), "we refuse: %.*s", (int)text.size, text.bytes);
        generated++;
        for (int i = 0; i < 6; i++, mutated++) {
            generate_mutation(&random, &text);
            accepted += compare_text(&text);
        }
        buffer_free(&text);
    }
    if (generated > 1000)
        CHECK(accepted > mutated / 50 && accepted < mutated - mutated / 50);
}
