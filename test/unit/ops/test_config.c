/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: precedence of sources, refused values and their sentences, and the shown values. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <troupe/error.h>
#include <troupe/sender.h>

#include "base/alloc.h"
#include "check.h"
#include "ops/config.h"

static struct config config;
static struct buffer out;

static const char *text_of(struct buffer *buffer)
{
    CHECK_EQ_INT(buffer_append(buffer, "", 1), 0);
    return buffer->bytes;
}

static int load(const char *file, const char *const *environment)
{
    config_fini(&config);
    buffer_clear(&out);
    return config_load_bytes(span_of(file), "t.conf",
        &(struct config_sources){ .environment = environment }, &config, &out);
}

static void end(void)
{
    config_fini(&config);
    buffer_free(&out);
}

static void refused(const char *file, const char *expected)
{
    CHECK_EQ_INT(load(file, NULL), TR_EINVAL);
    CHECK_EQ_STR(text_of(&out), expected);
    CHECK(config.values[0].text == NULL);
}

TEST(config, defaults_are_those_of_the_table)
{
    CHECK_EQ_INT(load("", NULL), 0);
    for (int i = 0; i < CONFIG_KEYS; i++) {
        CHECK_EQ_STR(config.values[i].text, config_settings[i].value);
        CHECK(!config_is_set(&config, (enum config_key)i));
    }
    CHECK_EQ_U64(config_number(&config, CONFIG_HTTP_HEADER_SIZE_MAX), 16384);
    CHECK_EQ_U64(config_number(&config, CONFIG_HTTP_HEADER_TIMEOUT), TR_SECONDS(10));
    CHECK_EQ_U64(config_number(&config, CONFIG_TRACE_SAMPLE), 100);
    CHECK(config_is_on(&config, CONFIG_SERVER_SANDBOX));
    end();
}

TEST(config, table_is_in_order_and_complete)
{
    for (int i = 0; i < CONFIG_KEYS; i++) {
        const char *key = config_settings[i].key;
        const char *help = config_settings[i].help;

        CHECK(strchr(key, '.') != NULL && strlen(key) < 50); /* inih keeps 49 of each part */
        CHECK(strspn(key, "abcdefghijklmnopqrstuvwxyz_.") == strlen(key));
        CHECK_MSG(help != NULL && help[strlen(help) - 1] != '.', "%s", key);
        CHECK_EQ_INT(config_find(key), i);
    }
    CHECK_EQ_INT(config_find("server"), CONFIG_KEYS);
}

TEST(config, flag_beats_environment_beats_file_beats_default)
{
    static const char *const environment[] = { "TROUPE_SERVER_LISTEN=1.1.1.1:2", "PATH=/bin",
        "TROUPE_HTTP_IN_FLIGHT_MAX=7", "TROUPE_BUILD=build/release", "TROUPE_SEED=4", NULL };
    static const struct config_flag flags[] = { { "--listen", "server.listen", "1.1.1.1:3" } };

    buffer_clear(&out);
    CHECK_EQ_INT(
        config_load_bytes(SPAN("[server]\nlisten = 1.1.1.1:1\ndata = /d\n"
                               "[http]\nin_flight_max = 5\npipeline_max=9\n"),
            "t.conf",
            &(struct config_sources){ .environment = environment, .flags = flags, .flag_count = 1 },
            &config, &out),
        0);
    CHECK_EQ_STR(config_text(&config, CONFIG_SERVER_LISTEN), "1.1.1.1:3");
    CHECK_EQ_STR(config.values[CONFIG_SERVER_LISTEN].place, "--listen");
    CHECK_EQ_U64(config_number(&config, CONFIG_HTTP_IN_FLIGHT_MAX), 7);
    CHECK_EQ_STR(config.values[CONFIG_HTTP_IN_FLIGHT_MAX].place, "TROUPE_HTTP_IN_FLIGHT_MAX");
    CHECK_EQ_U64(config_number(&config, CONFIG_HTTP_PIPELINE_MAX), 9);
    CHECK_EQ_STR(config.values[CONFIG_HTTP_PIPELINE_MAX].place, "t.conf:6");
    CHECK_EQ_STR(config_text(&config, CONFIG_ADMIN_LISTEN), "127.0.0.1:8081");
    end();
}

TEST(config, unknown_key_names_its_line_and_the_nearest)
{
    CHECK(config_nearest("server.foo") == NULL); /* three letters, three edits: another word */
    CHECK_EQ_STR(config_nearest("server.deb"), "server.dev");
    refused("[server]\n\nlisten = a:1\nlissten = b:2\n",
        "t.conf:4: server.lissten is not a setting; did you mean server.listen?\n");
    refused("[http]\nlisten = x\n",
        "t.conf:2: http.listen is not a setting; did you mean server.listen?\n");
    refused("[server]\nquux_of_doom = 1\n", "t.conf:2: server.quux_of_doom is not a setting; "
                                            "`troupe config list` shows all settings.\n");
    end();
}

TEST(config, bad_value_says_what_was_expected)
{
    refused("[http]\nin_flight_max = many\n",
        "t.conf:2: http.in_flight_max is 'many'; it must be a whole number.\n");
    refused("[http]\nin_flight_max = 0\n",
        "t.conf:2: http.in_flight_max is 0; it must be 1 to 1000000.\n");
    refused("[http]\nidle_timeout = 10\n",
        "t.conf:2: http.idle_timeout is '10'; it must be a duration like 250ms, 10s, 5m or 1h.\n");
    refused("[http]\nidle_timeout = 2h\n",
        "t.conf:2: http.idle_timeout is 2h; it must be 100ms to 1h.\n");
    refused("[http]\noutput_max = 1MB\n",
        "t.conf:2: http.output_max is '1MB'; it must be a size like 4096, 64KiB, 10MiB or 1GiB.\n");
    refused("[http]\nheader_size_max = 18446744073709551615KiB\n",
        "t.conf:2: http.header_size_max is '18446744073709551615KiB'; it must be a size like 4096, "
        "64KiB, 10MiB or 1GiB.\n");
    refused(
        "[server]\nsandbox = yes\n", "t.conf:2: server.sandbox is 'yes'; it must be on or off.\n");
    refused("[log]\nlevel = loud\n",
        "t.conf:2: log.level is 'loud'; it must be debug, info, warn or error.\n");
    refused("[trace]\nsample = 101%\n",
        "t.conf:2: trace.sample is '101%'; it must be a part like 10% or 0.25%, at most 100%.\n");
    end();
}

TEST(config, all_errors_are_reported_together)
{
    refused("[http]\nx_y_z_q = 1\nin_flight_max = a\n[log]\nformat = xml\n",
        "t.conf:2: http.x_y_z_q is not a setting; `troupe config list` shows all settings.\n"
        "t.conf:3: http.in_flight_max is 'a'; it must be a whole number.\n"
        "t.conf:5: log.format is 'xml'; it must be logfmt or json.\n");
    end();
}

TEST(config, errors_are_limited_and_the_rest_counted)
{
    struct buffer file = { 0 };
    unsigned lines = 0;

    buffer_text(&file, "[server]\n");
    for (int i = 0; i < 60000; i++)
        buffer_format(&file, "wrong%d = 1\n", i);
    buffer_append(&file, "", 1);
    CHECK_EQ_INT(load(file.bytes, NULL), TR_EINVAL);
    for (const char *at = text_of(&out); (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    CHECK_EQ_INT(lines, CONFIG_ERRORS_MAX + 1);
    CHECK(strstr(out.bytes, "\nThere are 59950 more errors.\n") != NULL);
    buffer_free(&file);
    end();
}

TEST(config, key_twice_is_refused)
{
    refused("[log]\nlevel = warn\n[server]\n[log]\nlevel = warn\n",
        "t.conf:5: log.level is set twice; the first is at t.conf:2.\n");
    end();
}

TEST(config, lines_that_are_no_setting_are_refused)
{
    refused("level = warn\n", "t.conf:1: The line has no [section] above it.\n");
    refused(
        "[log]\nlevel\n", "t.conf:2: The line must be `[section]`, `name = value` or a comment.\n");
    refused("[log\n", "t.conf:1: The line must be `[section]`, `name = value` or a comment.\n");
    end();
}

TEST(config, long_line_is_refused_not_cut)
{
    char file[600];
    int size = snprintf(file, sizeof file, "[sql]\nurl = postgresql://");

    memset(file + size, 'a', 300);
    snprintf(file + size + 300, 40, "\n[log]\nlevel = loud\n");
    CHECK_EQ_INT(load(file, NULL), TR_EINVAL);
    CHECK(strstr(text_of(&out), "t.conf:2: The line is longer than 197 characters") != NULL);
    /* and the lines after it keep their numbers */
    CHECK(strstr(out.bytes, "t.conf:4: log.level is 'loud'") != NULL);
    CHECK(strstr(out.bytes, "aaaaaaa") == NULL);
    end();
}

TEST(config, list_goes_on_in_indented_lines)
{
    struct span word;
    size_t position = 0;

    CHECK_EQ_INT(load("[server]\ntrusted_proxies = 10.0.0.0/8,\n  192.168.0.0/16\n\t::1/128\n"
                      "listen = a:1\n",
                     NULL),
        0);
    CHECK(strcmp(config_text(&config, CONFIG_SERVER_TRUSTED_PROXIES),
              "10.0.0.0/8,192.168.0.0/16,::1/128") == 0);
    CHECK(config_next(&config, CONFIG_SERVER_TRUSTED_PROXIES, &position, &word));
    CHECK(span_is(word, "10.0.0.0/8"));
    CHECK(config_next(&config, CONFIG_SERVER_TRUSTED_PROXIES, &position, &word));
    CHECK(span_is(word, "192.168.0.0/16"));
    CHECK(config_next(&config, CONFIG_SERVER_TRUSTED_PROXIES, &position, &word));
    CHECK(span_is(word, "::1/128"));
    CHECK(!config_next(&config, CONFIG_SERVER_TRUSTED_PROXIES, &position, &word));
    CHECK_EQ_STR(config_text(&config, CONFIG_SERVER_LISTEN), "a:1");
    refused("[server]\nlisten = a:1\n b:2\n", "t.conf:3: server.listen is set twice; the first is "
                                              "at t.conf:2. An indented line continues the "
                                              "value above it.\n");
    end();
}

TEST(config, misspelt_variable_of_a_section_is_refused)
{
    static const char *const environment[] = { "TROUPE_HTTP_IN_FLIGHT=7", NULL };

    CHECK_EQ_INT(load("", environment), TR_EINVAL);
    CHECK_EQ_STR(text_of(&out),
        "TROUPE_HTTP_IN_FLIGHT: http.in_flight is not a setting; did you mean "
        "http.in_flight_max?\n");
    end();
}

TEST(config, percent_has_two_digits_behind_the_point)
{
    const struct config_setting *setting = &config_settings[CONFIG_TRACE_SAMPLE];
    static const struct {
        const char *text;
        int number;
    } cases[] = { { "0%", 0 }, { "100%", 10000 }, { "0.5%", 50 }, { "0.05%", 5 },
        { "12.34%", 1234 }, { "100.01%", -1 }, { "1.234%", -1 }, { "1.%", -1 }, { ".5%", -1 },
        { "5", -1 }, { "-1%", -1 }, { "%", -1 }, { "5%%", -1 }, { "5 %", -1 } };
    char why[256];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t number = 77;
        int rc = config_parse_value(setting, cases[i].text, &number, why, sizeof why);

        CHECK_MSG(rc == (cases[i].number < 0 ? TR_EINVAL : 0), "%s", cases[i].text);
        CHECK_EQ_INT(number, cases[i].number < 0 ? 77 : cases[i].number);
    }
}

TEST(config, secrets_are_not_shown_nor_in_errors)
{
    static const struct {
        const char *url;
        const char *shown;
    } cases[] = { { "sqlite:/d/x.db", "sqlite:/d/x.db" },
        { "postgresql://u:hush@h:5/n", "postgresql://u:********@h:5/n" },
        { "postgresql://u:hu@sh@h/n", "postgresql://u:********@h/n" },
        { "postgresql://u@h/n?password=hush", "postgresql://u@h/n?********" },
        { "postgresql://u:hush@h/n?password=hush", "postgresql://u:********@h/n?********" },
        { "host=h password=hush", "********" } };
    char file[256];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(file, sizeof file, "[sql]\nurl = %s\n", cases[i].url);
        CHECK_EQ_INT(load(file, NULL), 0);
        buffer_clear(&out);
        config_put_value(&out, &config, CONFIG_SQL_URL);
        CHECK_EQ_STR(text_of(&out), cases[i].shown);
        buffer_clear(&out);
        config_show(&out, &config, true);
        config_show_json(&out, &config);
        CHECK(strstr(text_of(&out), "hush") == NULL && strstr(out.bytes, "hu@sh") == NULL);
    }
    end();
}

TEST(config, what_is_shown_can_be_read_again)
{
    static char shown[32 * 1024];

    CHECK_EQ_INT(load("[log]\nlevel = warn\n[server]\ntrusted_proxies = 10.0.0.0/8\n", NULL), 0);
    buffer_clear(&out);
    config_show(&out, &config, true);
    snprintf(shown, sizeof shown, "%s", text_of(&out));
    CHECK(strstr(shown, "level = warn") != NULL);
    CHECK(strstr(shown, "; file t.conf:2\n") != NULL);
    CHECK_EQ_INT(load(shown, NULL), 0);
    CHECK_EQ_STR(config_text(&config, CONFIG_LOG_LEVEL), "warn");
    buffer_clear(&out);
    config_list(&out);
    snprintf(shown, sizeof shown, "%s", text_of(&out));
    CHECK_EQ_INT(load(shown, NULL), 0);
    end();
}

TEST(config, reload_applies_what_is_safe_and_names_the_rest)
{
    struct config fresh = { 0 };
    struct buffer report = { 0 };

    CHECK_EQ_INT(load("[server]\nlisten = a:1\n[log]\nlevel = warn\n", NULL), 0);
    CHECK_EQ_INT(config_load_bytes(SPAN("[server]\nlisten = a:2\n[log]\nlevel = debug\n"), "t.conf",
                     &(struct config_sources){ 0 }, &fresh, &out),
        0);
    CHECK_EQ_INT(config_reload(&config, &fresh, &report), 1);
    CHECK_EQ_STR(text_of(&report), "server.listen needs a restart\nlog.level is now debug\n");
    CHECK_EQ_STR(config_text(&config, CONFIG_LOG_LEVEL), "debug");
    CHECK_EQ_STR(config_text(&config, CONFIG_SERVER_LISTEN), "a:1");
    buffer_free(&report);
    config_fini(&fresh);
    end();
}

TEST(config, file_that_is_not_there_is_an_error)
{
    CHECK_EQ_INT(
        config_load(&(struct config_sources){ .file_path = "/nowhere/t.conf" }, &config, &out),
        TR_ENOENT);
    CHECK_EQ_STR(text_of(&out), "/nowhere/t.conf: The file does not exist.\n");
    end();
}

TEST(config, every_allocation_may_fail)
{
    uint64_t countdown = 0;
    uint64_t calls;

    do {
        int rc;

        config_fini(&config);
        buffer_free(&out);
        base_fault_countdown(++countdown, 1);
        rc = load("[server]\nlisten = a:1\ntrusted_proxies = a\n b\n", NULL);
        calls = base_fault_countdown(0, 0);
        CHECK_EQ_INT(rc, calls >= countdown ? TR_ENOMEM : 0);
        CHECK((config.values[0].text == NULL) == (rc != 0));
    } while (calls >= countdown);
    CHECK(countdown > (uint64_t)2 * CONFIG_KEYS);
    end();
}
