/* SPDX-License-Identifier: Apache-2.0 */
/* config.c: any bytes as a settings file. A refused file gives a reason and changes no setting. An
 * accepted one has values that its own rows accept and prints as JSON, and the shown file reads back
 * as the same settings. */
#include "ops/config.h"

#include <string.h>

#include <troupe/error.h>

#include "base/assert.h"
#include "json/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool has_long_line(struct span text)
{
    size_t length = 0;

    for (size_t i = 0; i < text.size; i++) {
        length = text.at[i] == '\n' ? 0 : length + 1;
        if (length > 190)
            return true;
    }
    return false;
}

static void check_shown(const struct config *config, struct buffer *shown)
{
    struct buffer errors = { 0 };
    struct config again;
    int rc;

    rc = config_load_bytes((struct span){ shown->bytes, shown->size }, "shown",
        &(struct config_sources){ 0 }, &again, &errors);
    tr_assert(rc == 0);
    for (int i = 0; i < CONFIG_KEYS; i++)
        if (!config_settings[i].is_secret)
            tr_assert(strcmp(config->values[i].text, again.values[i].text) == 0);
    config_fini(&again);
    buffer_free(&errors);
}

static void check_accepted(const struct config *config)
{
    struct buffer shown = { 0 };
    struct json_doc doc = { 0 };
    char why[256];
    uint64_t number;
    int rc;

    for (int i = 0; i < CONFIG_KEYS; i++) {
        rc = config_parse_value(
            &config_settings[i], config->values[i].text, &number, why, sizeof why);
        tr_assert(rc == 0 && number == config->values[i].number);
    }
    config_show_json(&shown, config);
    rc = json_parse_copy(&doc, (struct span){ shown.bytes, shown.size }, JSON_UNIQUE_KEYS);
    tr_assert(rc == 0 && json_count(json_root(&doc)) == CONFIG_KEYS);
    json_doc_free(&doc);
    buffer_clear(&shown);
    config_show(&shown, config, false);
    if (!has_long_line((struct span){ shown.bytes, shown.size }))
        check_shown(config, &shown);
    buffer_free(&shown);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buffer errors = { 0 };
    struct config config;
    int rc;

    rc = config_load_bytes((struct span){ (const char *)data, size }, "fuzz",
        &(struct config_sources){ 0 }, &config, &errors);
    tr_assert(rc == 0 || rc == TR_EINVAL);
    tr_assert((rc == 0) == (errors.size == 0));
    if (rc == 0)
        check_accepted(&config);
    else
        tr_assert(config.values[0].text == NULL && errors.bytes[errors.size - 1] == '\n');
    config_fini(&config);
    buffer_free(&errors);
    return 0;
}
