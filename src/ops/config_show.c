/* SPDX-License-Identifier: Apache-2.0 */
/* config_show.c: writes settings for people. No function here writes a secret. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "json/json_write.h"
#include "ops/config.h"

#define MASK "********"

const char *config_origin_text(enum config_origin origin)
{
    static const char *const texts[] = { "default", "file", "environment", "flag" };

    tr_assert(origin <= CONFIG_FLAG);
    return texts[origin];
}

/* Write a URL without its password, so that an operator sees which database it is. Parameters may hold a
 * password too, so all of them are hidden. False if the text is not a URL. */
static bool put_url(struct buffer *out, const char *text)
{
    const char *scheme = strstr(text, "://");
    const char *host = scheme == NULL ? NULL : scheme + 3 + strcspn(scheme + 3, "/?#");
    const char *question = strchr(text, '?');
    const char *at = NULL;
    const char *colon;

    if (strncmp(text, "sqlite:", 7) == 0) {
        buffer_text(out, text);
        return true;
    }
    if (scheme == NULL)
        return false;
    for (const char *c = scheme + 3; c < host; c++)
        if (*c == '@')
            at = c;
    colon = at == NULL ? NULL : memchr(scheme + 3, ':', (size_t)(at - scheme - 3));
    if (colon != NULL) {
        buffer_append(out, text, (size_t)(colon + 1 - text));
        buffer_text(out, MASK);
        text = at;
    }
    if (question == NULL) {
        buffer_text(out, text);
    } else {
        buffer_append(out, text, (size_t)(question + 1 - text));
        buffer_text(out, MASK);
    }
    return true;
}

void config_put_value(struct buffer *out, const struct config *config, enum config_key key)
{
    const char *text = config->values[key].text;

    tr_assert(key < CONFIG_KEYS);
    if (!config_settings[key].is_secret || text[0] == '\0')
        buffer_text(out, text);
    else if (!put_url(out, text))
        buffer_text(out, MASK);
}

static size_t section_size(int key)
{
    return strcspn(config_settings[key].key, ".");
}

static bool is_new_section(int key)
{
    return key == 0 || section_size(key) != section_size(key - 1) ||
           memcmp(config_settings[key].key, config_settings[key - 1].key, section_size(key)) != 0;
}

static void put_section(struct buffer *out, int key)
{
    if (is_new_section(key))
        buffer_format(out, "%s[%.*s]\n", key == 0 ? "" : "\n", (int)section_size(key),
            config_settings[key].key);
}

void config_show(struct buffer *out, const struct config *config, bool with_origin)
{
    for (int i = 0; i < CONFIG_KEYS; i++) {
        const struct config_value *value = &config->values[i];
        size_t start;

        put_section(out, i);
        start = out->size;
        buffer_format(out, "%s = ", config_settings[i].key + section_size(i) + 1);
        config_put_value(out, config, (enum config_key)i);
        if (with_origin) {
            int spaces = 40 - (int)(out->size - start);

            buffer_format(out, "%*s ; %s%s%s", spaces > 0 ? spaces : 0, "",
                config_origin_text(value->origin), value->place[0] != '\0' ? " " : "",
                value->place);
        }
        buffer_text(out, "\n");
    }
}

void config_show_json(struct buffer *out, const struct config *config)
{
    struct buffer shown = { 0 };

    buffer_text(out, "{");
    for (int i = 0; i < CONFIG_KEYS; i++) {
        buffer_clear(&shown);
        config_put_value(&shown, config, (enum config_key)i);
        buffer_format(out, "%s\n  \"%s\": {\"value\": ", i == 0 ? "" : ",", config_settings[i].key);
        json_quote(out, (struct span){ shown.bytes, shown.size });
        buffer_format(
            out, ", \"origin\": \"%s\", \"place\": ", config_origin_text(config->values[i].origin));
        json_quote(out, span_of(config->values[i].place));
        buffer_format(
            out, ", \"reloadable\": %s}", config_settings[i].is_reloadable ? "true" : "false");
    }
    buffer_text(out, "\n}\n");
    if (shown.failed != 0 && out->failed == 0)
        out->failed = shown.failed;
    buffer_free(&shown);
}

static const char *kind_text(enum config_kind kind)
{
    static const char *const texts[] = { "text", "path", "number", "size", "duration", "on/off",
        "list", "percent" };

    tr_assert(kind <= CONFIG_PERCENT);
    return texts[kind];
}

void config_list(struct buffer *out)
{
    for (int i = 0; i < CONFIG_KEYS; i++) {
        const struct config_setting *setting = &config_settings[i];

        put_section(out, i);
        buffer_format(out, "# %s.%s%s%s\n# %s = %s\n", setting->help,
            setting->choices != NULL ? " " : "", setting->choices != NULL ? setting->choices : "",
            setting->is_reloadable ? " (SIGHUP applies it)" : "",
            setting->key + section_size(i) + 1, setting->value);
    }
}

void config_list_markdown(struct buffer *out)
{
    buffer_text(out, "| setting | kind | default | SIGHUP | meaning |\n|---|---|---|---|---|\n");
    for (int i = 0; i < CONFIG_KEYS; i++) {
        const struct config_setting *setting = &config_settings[i];

        buffer_format(out, "| `%s` | ", setting->key);
        for (const char *at = setting->choices != NULL ? setting->choices
                                                       : kind_text(setting->kind);
             *at != '\0'; at++)
            buffer_append(out, *at == '|' ? "/" : at, 1);
        buffer_format(out, "%s | %s%s%s | %s | %s. |\n", setting->is_secret ? ", secret" : "",
            setting->value[0] != '\0' ? "`" : "", setting->value,
            setting->value[0] != '\0' ? "`" : "", setting->is_reloadable ? "yes" : "",
            setting->help);
    }
}
