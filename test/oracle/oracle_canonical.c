/* SPDX-License-Identifier: Apache-2.0 */
/* oracle_canonical.c: canonical.py, which uses Python's json module, must find the same canonical
 * form for each text, or none as well. */
#include <stdio.h>
#include <sys/wait.h>

#include "check.h"
#include "generate.h"
#include "json/json.h"

static void put_sized(FILE *to, const struct buffer *bytes, bool is_there)
{
    size_t size = is_there ? bytes->size : UINT32_MAX;
    unsigned char head[4] = { (unsigned char)size, (unsigned char)(size >> 8),
        (unsigned char)(size >> 16), (unsigned char)(size >> 24) };

    CHECK(fwrite(head, 1, 4, to) == 4);
    if (is_there)
        CHECK(fwrite(bytes->bytes, 1, bytes->size, to) == bytes->size);
}

TEST_LONG(oracle, python_finds_the_same_canonical_form, 120)
{
    FILE *python = popen(ORACLE_SCRIPT, "w");
    struct json_doc doc = { 0 };
    unsigned count = check_is_long() ? 200000 : 5000;
    int status;

    CHECK(python != NULL);
    for (uint64_t seed; check_each_seed(&seed, count);) {
        struct buffer text = { 0 }, form = { 0 };
        struct base_random random;
        int rc;

        base_random_init(&random, seed ^ 0xca0);
        generate_integer_json(&random, &text);
        CHECK_EQ_INT(json_parse_copy(&doc, (struct span){ text.bytes, text.size }, 0), 0);
        rc = json_canonical(json_root(&doc), NULL, &form);
        put_sized(python, &text, true);
        put_sized(python, &form, rc == 0);
        buffer_free(&text);
        buffer_free(&form);
    }
    json_doc_free(&doc);
    status = pclose(python);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "canonical.py disagrees, see above");
}
