/* SPDX-License-Identifier: Apache-2.0 */
/* config.c: reads settings from the table, a file, the environment and flags, in this order.
 *
 * inih splits lines into section, name and value. next_line gives it one line at a time and counts them.
 * inih keeps at most 197 characters of a line and would cut a longer one in two, so next_line refuses
 * longer lines. Every source calls config_assign, the only place that checks a value. */
#include "ops/config.h"

#include <ini.h>
#include <stdio.h>
#include <string.h>

#include <troupe/env.h>

#include "base/alloc.h"
#include "base/assert.h"

#define ENVIRONMENT_PREFIX "TROUPE_"
enum { KEY_SIZE_MAX = 64, WHY_SIZE = 256, CHOICES_SIZE = 128 };

struct loader {
    struct config *config;
    struct buffer *errors;
    unsigned error_count;
    bool is_out_of_memory;
    const char *file_name;
    struct span rest; /* of the file */
    unsigned line;
    bool is_indented;
    bool was_refused; /* this line has an error already */
};

/* ---- errors ---------------------------------------------------------------------------------- */

static void config_complain(struct loader *loader, const char *place, const char *problem)
{
    if (++loader->error_count > CONFIG_ERRORS_MAX)
        return;
    buffer_format(loader->errors, "%s: %s\n", place, problem);
}

static const char *place_of_line(const struct loader *loader, char place[], size_t size)
{
    snprintf(place, size, "%s:%u", loader->file_name, loader->line);
    return place;
}

static void config_complain_line(struct loader *loader, const char *problem)
{
    char place[WHY_SIZE];

    loader->was_refused = true;
    config_complain(loader, place_of_line(loader, place, sizeof place), problem);
}

/* ---- keys ------------------------------------------------------------------------------------ */

enum config_key config_find(const char *key)
{
    for (int i = 0; i < CONFIG_KEYS; i++)
        if (strcmp(config_settings[i].key, key) == 0)
            return (enum config_key)i;
    return CONFIG_KEYS;
}

/* Count the edits (insert, remove, replace) between two short texts. */
unsigned config_edit_distance(const char *a, const char *b)
{
    unsigned row[KEY_SIZE_MAX + 1];
    size_t a_size = strlen(a);
    size_t b_size = strlen(b);

    if (a_size > KEY_SIZE_MAX || b_size > KEY_SIZE_MAX)
        return KEY_SIZE_MAX;
    for (size_t i = 0; i <= b_size; i++)
        row[i] = (unsigned)i;
    for (size_t i = 1; i <= a_size; i++) {
        unsigned diagonal = row[0];

        row[0] = (unsigned)i;
        for (size_t j = 1; j <= b_size; j++) {
            unsigned best = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[b_size];
}

static const char *name_of(const char *key)
{
    const char *dot = strchr(key, '.');

    return dot == NULL ? key : dot + 1;
}

/* Find common mistakes that are many edits apart: the right name in the wrong section, or the first part
 * of a name. */
static bool is_related(const char *key, const char *setting_key)
{
    return strcmp(name_of(key), name_of(setting_key)) == 0 ||
           (strlen(name_of(key)) >= 4 && strncmp(setting_key, key, strlen(key)) == 0);
}

const char *config_nearest(const char *key)
{
    enum {
        EDITS_MAX = 3
    }; /* with more edits, or more than half of its letters, it is another word */
    const unsigned half = (unsigned)strlen(name_of(key)) / 2;
    const char *nearest = NULL;
    unsigned best = EDITS_MAX + 1;

    for (int i = 0; i < CONFIG_KEYS; i++) {
        unsigned edits = config_edit_distance(key, config_settings[i].key);

        if (edits > half)
            edits = EDITS_MAX + 1;
        if (edits > EDITS_MAX && is_related(key, config_settings[i].key))
            edits = EDITS_MAX;
        if (edits < best) {
            best = edits;
            nearest = config_settings[i].key;
        }
    }
    return nearest;
}

static void config_complain_key(struct loader *loader, const char *place, const char *key)
{
    const char *nearest;
    char problem[WHY_SIZE];

    if (loader->error_count >= CONFIG_ERRORS_MAX) {
        loader->error_count++; /* do not search for a similar key: that is slow */
        return;
    }
    nearest = config_nearest(key);
    if (nearest != NULL)
        snprintf(problem, sizeof problem, "%.64s is not a setting; did you mean %s?", key, nearest);
    else
        snprintf(problem, sizeof problem,
            "%.64s is not a setting; `troupe config list` shows all settings.", key);
    config_complain(loader, place, problem);
}

/* ---- values ---------------------------------------------------------------------------------- */

struct unit {
    const char *name;
    uint64_t factor;
};
static const struct unit byte_units[] = { { "", 1 }, { "B", 1 }, { "KiB", 1024 },
    { "MiB", UINT64_C(1024) * 1024 }, { "GiB", UINT64_C(1024) * 1024 * 1024 }, { NULL, 0 } };
static const struct unit duration_units[] = { { "ms", 1000000 }, { "s", 1000000000 },
    { "m", UINT64_C(60) * 1000000000 }, { "h", UINT64_C(3600) * 1000000000 }, { NULL, 0 } };

/* Parse digits followed by the name of a unit. */
static int parse_with_unit(const char *text, const struct unit *units, uint64_t *ret_number)
{
    size_t digits = strspn(text, "0123456789");
    uint64_t number;

    if (!span_u64((struct span){ text, digits }, &number))
        return TR_EINVAL;
    for (; units->name != NULL; units++)
        if (strcmp(text + digits, units->name) == 0)
            return __builtin_mul_overflow(number, units->factor, ret_number) ? TR_EINVAL : 0;
    return TR_EINVAL;
}

/* Parse 12%, 0.5% or 99.99% to hundredths of a percent. */
static int parse_percent(const char *text, uint64_t *ret_number)
{
    size_t whole_size = strspn(text, "0123456789");
    uint64_t whole;
    uint64_t part = 0;

    if (!span_u64((struct span){ text, whole_size }, &whole) || whole > 100)
        return TR_EINVAL;
    text += whole_size;
    if (*text == '.') {
        size_t size = strspn(++text, "0123456789");

        if (size < 1 || size > 2 || !span_u64((struct span){ text, size }, &part))
            return TR_EINVAL;
        part *= size == 1 ? 10 : 1;
        text += size;
    }
    if (strcmp(text, "%") != 0 || whole * 100 + part > 10000)
        return TR_EINVAL;
    *ret_number = whole * 100 + part;
    return 0;
}

static bool is_choice(const char *choices, const char *text)
{
    size_t size = strlen(text);

    while (size > 0) {
        size_t choice_size = strcspn(choices, "|");

        if (choice_size == size && memcmp(choices, text, size) == 0)
            return true;
        if (choices[choice_size] == '\0')
            return false;
        choices += choice_size + 1;
    }
    return false;
}

/* Write "a|b|c" as "a, b or c". */
static void format_choices(const char *choices, char text[CHOICES_SIZE])
{
    size_t size = 0;

    for (const char *at = choices == NULL ? "" : choices; *at != '\0' && size + 5 < CHOICES_SIZE;
         at++) {
        const char *piece = strchr(at + 1, '|') == NULL ? " or " : ", ";

        if (*at != '|')
            text[size++] = *at;
        else
            size += (size_t)snprintf(text + size, CHOICES_SIZE - size, "%s", piece);
    }
    text[size] = '\0';
}

static const char *form_of(enum config_kind kind)
{
    static const char *const forms[] = {
        [CONFIG_INT] = "a whole number",
        [CONFIG_BYTES] = "a size like 4096, 64KiB, 10MiB or 1GiB",
        [CONFIG_DURATION] = "a duration like 250ms, 10s, 5m or 1h",
        [CONFIG_BOOL] = "on or off",
        [CONFIG_PERCENT] = "a part like 10% or 0.25%, at most 100%",
    };

    return forms[kind];
}

static int parse_kind(const struct config_setting *setting, const char *text, uint64_t *ret_number)
{
    *ret_number = 0;
    switch (setting->kind) {
    case CONFIG_INT:
        return span_u64(span_of(text), ret_number) ? 0 : TR_EINVAL;
    case CONFIG_BYTES:
        return parse_with_unit(text, byte_units, ret_number);
    case CONFIG_DURATION:
        return parse_with_unit(text, duration_units, ret_number);
    case CONFIG_PERCENT:
        return parse_percent(text, ret_number);
    case CONFIG_BOOL:
        *ret_number = strcmp(text, "on") == 0;
        return *ret_number == 1 || strcmp(text, "off") == 0 ? 0 : TR_EINVAL;
    case CONFIG_TEXT:
        return setting->choices == NULL || is_choice(setting->choices, text) ? 0 : TR_EINVAL;
    case CONFIG_PATH:
    case CONFIG_LIST:
        return 0;
    }
    return TR_EINVAL;
}

/* Write a number as an operator would write it. */
static void format_number(
    const struct config_setting *setting, uint64_t number, char *text, size_t size)
{
    const struct unit *units = setting->kind == CONFIG_BYTES      ? byte_units + 1
                               : setting->kind == CONFIG_DURATION ? duration_units
                                                                  : NULL;
    const struct unit *best = units;

    if (units == NULL) {
        snprintf(text, size, "%llu", (unsigned long long)number);
        return;
    }
    for (; units->name != NULL; units++)
        if (number % units->factor == 0 && number > 0)
            best = units;
    snprintf(text, size, "%llu%s", (unsigned long long)(number / best->factor), best->name);
}

int config_parse_value(const struct config_setting *setting, const char *text, uint64_t *ret_number,
    char *why, size_t why_size)
{
    const char *shown = setting->is_secret ? "(hidden)" : text;
    char choices[CHOICES_SIZE];
    char min[32];
    char max[32];
    uint64_t number;

    for (const char *at = text; *at != '\0'; at++) {
        if ((unsigned char)*at < ' ' || *at == 0x7f) {
            snprintf(
                why, why_size, "%s has a control character in its value; remove it.", setting->key);
            return TR_EINVAL;
        }
    }
    if (parse_kind(setting, text, &number) != 0) {
        format_choices(setting->choices, choices);
        snprintf(why, why_size, "%s is '%.80s'; it must be %s.", setting->key, shown,
            setting->kind == CONFIG_TEXT ? choices : form_of(setting->kind));
        return TR_EINVAL;
    }
    if (number < setting->min || (setting->max != 0 && number > setting->max)) {
        format_number(setting, setting->min, min, sizeof min);
        format_number(setting, setting->max, max, sizeof max);
        snprintf(why, why_size, "%s is %.80s; it must be %s to %s.", setting->key, shown, min, max);
        return TR_EINVAL;
    }
    *ret_number = number;
    return 0;
}

/* ---- assigning ------------------------------------------------------------------------------- */

static void config_value_fini(struct config_value *value)
{
    base_free(value->text);
    base_free(value->place);
    *value = (struct config_value){ 0 };
}

static int config_value_copy(struct config_value *value, const struct config_value *from)
{
    struct config_value fresh = *from;

    fresh.text = base_strdup(from->text);
    fresh.place = base_strdup(from->place);
    if (fresh.text == NULL || fresh.place == NULL) {
        config_value_fini(&fresh);
        return TR_ENOMEM;
    }
    config_value_fini(value);
    *value = fresh;
    return 0;
}

static void config_store(
    struct loader *loader, enum config_key key, const struct config_value *from)
{
    if (config_value_copy(&loader->config->values[key], from) != 0)
        loader->is_out_of_memory = true;
}

/* Check a value and store it. Every source comes through here. */
static void config_assign(struct loader *loader, const char *key_text, const char *text,
    enum config_origin origin, const char *place)
{
    enum config_key key = config_find(key_text);
    struct config_value value = { .origin = origin };
    char why[WHY_SIZE];

    if (key == CONFIG_KEYS) {
        config_complain_key(loader, place, key_text);
        return;
    }
    if (config_parse_value(&config_settings[key], text, &value.number, why, sizeof why) != 0) {
        config_complain(loader, place, why);
        return;
    }
    value.text = base_strdup(text);
    value.place = base_strdup(place);
    if (value.text == NULL || value.place == NULL)
        loader->is_out_of_memory = true;
    else
        config_store(loader, key, &value);
    config_value_fini(&value);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Give inih its next line, or an empty one in place of a refused line. */
static char *next_line(char *line, int size, void *data)
{
    struct loader *loader = data;
    const char *end;
    size_t length;

    if (loader->rest.size == 0 || size < 8)
        return NULL;
    loader->line++;
    loader->was_refused = false;
    end = memchr(loader->rest.at, '\n', loader->rest.size);
    length = end == NULL ? loader->rest.size : (size_t)(end - loader->rest.at);
    line[0] = '\0';
    if (length + 3 > (size_t)size) {
        char problem[WHY_SIZE];

        snprintf(problem, sizeof problem,
            "The line is longer than %d characters; continue a list in indented lines, or set a "
            "long value by the environment.",
            size - 3);
        config_complain_line(loader, problem);
    } else if (memchr(loader->rest.at, '\0', length) != NULL) {
        config_complain_line(loader, "The line has a NUL byte.");
    } else {
        memcpy(line, loader->rest.at, length);
        line[length] = '\0';
    }
    loader->is_indented = line[0] == ' ' || line[0] == '\t';
    length += end != NULL;
    loader->rest.at += length;
    loader->rest.size -= length;
    return line;
}

/* Append `more` to a list. */
static void config_extend(struct loader *loader, enum config_key key, const char *more)
{
    struct config_value *value = &loader->config->values[key];
    struct config_value fresh = *value;
    struct buffer text = { 0 };
    char why[WHY_SIZE];

    if (config_parse_value(&config_settings[key], more, &fresh.number, why, sizeof why) != 0) {
        config_complain_line(loader, why);
        return;
    }
    buffer_text(&text, value->text);
    if (text.size > 0 && text.bytes[text.size - 1] != ',')
        buffer_text(&text, ",");
    buffer_text(&text, more);
    buffer_append(&text, "", 1);
    fresh.text = text.bytes;
    if (text.failed != 0)
        loader->is_out_of_memory = true;
    else
        config_store(loader, key, &fresh);
    buffer_free(&text);
}

/* Take a line from inih. 0 marks the line as an error. */
static int take_line(void *data, const char *section, const char *name, const char *text)
{
    struct loader *loader = data;
    char key_text[2 * KEY_SIZE_MAX];
    char place[WHY_SIZE];
    char problem[WHY_SIZE];
    enum config_key key;

    if (loader->was_refused)
        return 0;
    if (section[0] == '\0') {
        config_complain_line(loader, "The line has no [section] above it.");
        return 0;
    }
    snprintf(key_text, sizeof key_text, "%s.%s", section, name);
    key = config_find(key_text);
    if (key < CONFIG_KEYS && loader->config->values[key].origin == CONFIG_FILE) {
        if (loader->is_indented && config_settings[key].kind == CONFIG_LIST) {
            config_extend(loader, key, text);
            return 1;
        }
        snprintf(problem, sizeof problem, "%.64s is set twice; the first is at %.100s.%s", key_text,
            loader->config->values[key].place,
            loader->is_indented ? " An indented line continues the value above it." : "");
        config_complain_line(loader, problem);
        return 0;
    }
    config_assign(loader, key_text, text, CONFIG_FILE, place_of_line(loader, place, sizeof place));
    return 1;
}

static void load_file_bytes(struct loader *loader, struct span file, const char *name)
{
    unsigned errors_before = loader->error_count;
    int bad_line;

    loader->file_name = name;
    loader->rest = file;
    loader->line = 0;
    bad_line = ini_parse_stream(next_line, loader, take_line, loader);
    if (bad_line > 0 && loader->error_count == errors_before) {
        loader->line = (unsigned)bad_line;
        config_complain_line(loader, "The line must be `[section]`, `name = value` or a comment.");
    } else if (bad_line < 0) {
        loader->is_out_of_memory = true;
    }
}

static int read_config_file(const char *path, struct buffer *ret_bytes)
{
    const struct tr_env *env = tr_env_real();
    struct tr_file *file;
    uint64_t size;
    size_t got = 0;
    char *to;
    int rc;

    rc = env->disk->open(env->disk_data, path, TR_OPEN_READ, &file);
    if (rc != 0)
        return rc;
    rc = env->disk->size(file, &size);
    if (rc == 0 && size > CONFIG_FILE_SIZE_MAX)
        rc = TR_ETOOBIG;
    if (rc == 0) {
        to = buffer_reserve(ret_bytes, (size_t)size + 1);
        rc = to == NULL ? TR_ENOMEM : env->disk->read(file, 0, to, (size_t)size, &got);
        if (rc == 0)
            buffer_grew(ret_bytes, got);
    }
    env->disk->close(file);
    return rc;
}

static void config_complain_file(struct loader *loader, const char *path, int rc)
{
    char problem[WHY_SIZE];

    if (rc == TR_ENOENT)
        snprintf(problem, sizeof problem, "The file does not exist.");
    else
        snprintf(problem, sizeof problem, "The file could not be read: %s.", tr_error_text(rc));
    config_complain(loader, path, problem);
}

static int load_file(struct loader *loader, const char *path)
{
    struct buffer bytes = { 0 };
    int rc;

    rc = read_config_file(path, &bytes);
    if (rc == 0)
        load_file_bytes(loader, (struct span){ bytes.bytes, bytes.size }, path);
    else
        config_complain_file(loader, path, rc);
    buffer_free(&bytes);
    return rc;
}

/* ---- environment and flags ------------------------------------------------------------------- */

/* TROUPE_HTTP_IN_FLIGHT_MAX sets http.in_flight_max: the first underscore stands for the dot. */
static void load_variable(struct loader *loader, const char *variable)
{
    const char *equals = strchr(variable, '=');
    char name[2 * KEY_SIZE_MAX];
    char key[2 * KEY_SIZE_MAX];
    size_t size = 0;
    bool has_dot = false;

    if (equals == NULL || (size_t)(equals - variable) >= sizeof name)
        return;
    snprintf(name, sizeof name, "%.*s", (int)(equals - variable), variable);
    for (const char *at = name + strlen(ENVIRONMENT_PREFIX); *at != '\0'; at++) {
        bool is_dot = *at == '_' && !has_dot;

        has_dot |= is_dot;
        key[size++] = (char)(is_dot ? '.' : *at >= 'A' && *at <= 'Z' ? *at + 32 : *at);
    }
    key[size] = '\0';
    config_assign(loader, key, equals + 1, CONFIG_ENVIRONMENT, name);
}

/* Tell whether a variable names a section. Variables of the tests and the build have the same prefix and
 * no section: they are not settings. */
static bool is_in_section(const char *variable)
{
    const char *name = variable + strlen(ENVIRONMENT_PREFIX);
    size_t size = strcspn(name, "_=");

    if (name[size] != '_')
        return false;
    for (int i = 0; i < CONFIG_KEYS; i++) {
        const char *key = config_settings[i].key;
        size_t at = 0;

        while (at < size && (name[at] | 32) == key[at])
            at++;
        if (at == size && key[at] == '.')
            return true;
    }
    return false;
}

static void load_environment(struct loader *loader, const char *const *environment)
{
    for (; environment != NULL && *environment != NULL; environment++)
        if (strncmp(*environment, ENVIRONMENT_PREFIX, strlen(ENVIRONMENT_PREFIX)) == 0 &&
            is_in_section(*environment))
            load_variable(loader, *environment);
}

static void load_defaults(struct loader *loader)
{
    for (int i = 0; i < CONFIG_KEYS; i++) {
        tr_assert(config_settings[i].key != NULL);
        config_assign(loader, config_settings[i].key, config_settings[i].value, CONFIG_DEFAULT, "");
    }
    tr_assert(loader->error_count == 0); /* every default must pass its own row */
}

static int load_rest(struct loader *loader, const struct config_sources *sources, int rc)
{
    load_environment(loader, sources->environment);
    for (size_t i = 0; i < sources->flag_count; i++)
        config_assign(loader, sources->flags[i].key, sources->flags[i].value, CONFIG_FLAG,
            sources->flags[i].name);
    if (loader->error_count > CONFIG_ERRORS_MAX)
        buffer_format(
            loader->errors, "There are %u more errors.\n", loader->error_count - CONFIG_ERRORS_MAX);
    if (loader->is_out_of_memory || loader->errors->failed != 0)
        rc = TR_ENOMEM;
    else if (rc == 0 && loader->error_count > 0)
        rc = TR_EINVAL;
    if (rc != 0)
        config_fini(loader->config);
    return rc;
}

int config_load_bytes(struct span file, const char *name, const struct config_sources *sources,
    struct config *ret_config, struct buffer *errors)
{
    struct loader loader = { .config = ret_config, .errors = errors };

    *ret_config = (struct config){ 0 };
    load_defaults(&loader);
    if (!loader.is_out_of_memory)
        load_file_bytes(&loader, file, name);
    return load_rest(&loader, sources, 0);
}

int config_load(
    const struct config_sources *sources, struct config *ret_config, struct buffer *errors)
{
    struct loader loader = { .config = ret_config, .errors = errors };
    int rc = 0;

    *ret_config = (struct config){ 0 };
    load_defaults(&loader);
    if (sources->file_path != NULL && !loader.is_out_of_memory)
        rc = load_file(&loader, sources->file_path);
    return load_rest(&loader, sources, rc);
}

void config_fini(struct config *config)
{
    for (int i = 0; i < CONFIG_KEYS; i++)
        config_value_fini(&config->values[i]);
}

/* ---- reading --------------------------------------------------------------------------------- */

const char *config_text(const struct config *config, enum config_key key)
{
    tr_assert(config->values[key].text != NULL);
    return config->values[key].text;
}

uint64_t config_number(const struct config *config, enum config_key key)
{
    tr_assert(config_settings[key].kind != CONFIG_TEXT && config_settings[key].kind != CONFIG_LIST);
    return config->values[key].number;
}

bool config_is_on(const struct config *config, enum config_key key)
{
    tr_assert(config_settings[key].kind == CONFIG_BOOL);
    return config->values[key].number != 0;
}

bool config_is_set(const struct config *config, enum config_key key)
{
    tr_assert(key < CONFIG_KEYS);
    return config->values[key].origin != CONFIG_DEFAULT;
}

bool config_next(
    const struct config *config, enum config_key key, size_t *position, struct span *ret_word)
{
    const char *text = config_text(config, key);

    *position += strspn(text + *position, ", \t");
    if (text[*position] == '\0')
        return false;
    *ret_word = (struct span){ text + *position, strcspn(text + *position, ", \t") };
    *position += ret_word->size;
    return true;
}

/* ---- reload ---------------------------------------------------------------------------------- */

unsigned config_reload(struct config *config, struct config *fresh, struct buffer *report)
{
    unsigned applied = 0;

    tr_assert(config != fresh);
    for (int i = 0; i < CONFIG_KEYS; i++) {
        struct config_value *value = &config->values[i];
        struct config_value old = *value;

        if (strcmp(value->text, fresh->values[i].text) == 0)
            continue;
        if (!config_settings[i].is_reloadable) {
            buffer_format(report, "%s needs a restart\n", config_settings[i].key);
            continue;
        }
        *value = fresh->values[i]; /* swap: the owner of `fresh` releases the old value */
        fresh->values[i] = old;
        applied++;
        buffer_format(report, "%s is now ", config_settings[i].key);
        config_put_value(report, config, (enum config_key)i);
        buffer_text(report, "\n");
    }
    return applied;
}
