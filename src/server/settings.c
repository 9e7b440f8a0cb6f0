/* SPDX-License-Identifier: Apache-2.0 */
#include "server/settings.h"

#include <stdio.h>
#include <string.h>

#include <troupe/error.h>

#include "auth/did.h"
#include "base/assert.h"
#include "http/client.h"
#include "net/address.h"
#include "ops/admin.h"
#include "support/log.h"

enum { WORD_SIZE = 1024, WHY_SIZE = 512 };

struct checker {
    const struct config *config;
    struct buffer *errors;
    bool is_wrong;
};

/* Add "PLACE: SENTENCE" to the errors. `problem` is the sentence. */
static void settings_complain(struct checker *checker, enum config_key key, const char *problem)
{
    const char *place = checker->config->values[key].place;

    checker->is_wrong = true;
    buffer_format(checker->errors, "%s%s%s\n", place, place[0] == '\0' ? "" : ": ", problem);
}

static void settings_complain_value(
    struct checker *checker, enum config_key key, const char *value, const char *expected)
{
    char problem[WHY_SIZE];

    snprintf(problem, sizeof problem, "%s is '%.100s'; it must be %s.", config_settings[key].key,
        value, expected);
    settings_complain(checker, key, problem);
}

/* Copy the next word of a list, cut to WORD_SIZE. False at the end. */
static bool next_word(
    const struct checker *checker, enum config_key key, size_t *position, char word[WORD_SIZE])
{
    struct span span;

    if (!config_next(checker->config, key, position, &span))
        return false;
    snprintf(
        word, WORD_SIZE, "%.*s", (int)(span.size < WORD_SIZE ? span.size : WORD_SIZE), span.at);
    return true;
}

/* ---- forms ---------------------------------------------------------------------------------- */

bool settings_is_url(const char *text)
{
    size_t scheme = strncmp(text, "https://", 8) == 0  ? 8
                    : strncmp(text, "http://", 7) == 0 ? 7
                                                       : 0;

    if (scheme == 0 || strcspn(text + scheme, "/?#:") == 0)
        return false;
    for (const char *at = text; *at != '\0'; at++)
        if ((unsigned char)*at <= ' ' || (unsigned char)*at >= 0x7f || strchr("\"<>\\^`{|}", *at))
            return false;
    return true;
}

/* Read a provider's keys: a URL, or the absolute path of a file, with or without file: before it. */
static bool parse_keys(const char *text, struct session_provider *provider)
{
    const char *path = strncmp(text, "file:", 5) == 0 ? text + 5 : text;

    if (path[0] == '/' && path[1] != '\0')
        provider->keys_file = path;
    else
        provider->keys_url = text;
    return provider->keys_file != NULL || settings_is_url(text);
}

bool settings_parse_provider(char *text, struct session_provider *ret_provider)
{
    const char *parts[4];
    char *rest = text;

    for (size_t i = 0; i < 4; i++) {
        parts[i] = strsep(&rest, "+");
        if (parts[i] == NULL || parts[i][0] == '\0')
            return false;
    }
    *ret_provider =
        (struct session_provider){ .name = parts[0], .issuer = parts[1], .audience = parts[3] };
    return rest == NULL && settings_is_url(parts[1]) && parse_keys(parts[2], ret_provider);
}

static void check_listen(struct checker *checker, enum config_key key)
{
    const char *text = config_text(checker->config, key);
    struct net_address address;

    if (net_address_parse(text, &address) != 0)
        settings_complain_value(
            checker, key, text, "an address like 127.0.0.1:8080, [::1]:8080 or unix:/path");
}

static void check_url(struct checker *checker, enum config_key key, const char *expected)
{
    const char *text = config_text(checker->config, key);

    if (!settings_is_url(text))
        settings_complain_value(checker, key, text, expected);
}

/* ---- single settings ------------------------------------------------------------------------ */

static void check_proxies(struct checker *checker)
{
    char word[WORD_SIZE];
    struct net_cidr cidr;
    size_t position = 0;

    while (next_word(checker, CONFIG_SERVER_TRUSTED_PROXIES, &position, word))
        if (net_cidr_parse(word, &cidr) != 0)
            settings_complain_value(checker, CONFIG_SERVER_TRUSTED_PROXIES, word,
                "networks like 10.0.0.0/8, or addresses");
}

/* The value is a secret: do not print it. A URL that the client refuses would never push, silently. */
static void check_push(struct checker *checker)
{
    const char *url = config_text(checker->config, CONFIG_DELIVERY_PUSH_URL);

    if (url[0] != '\0' && (!settings_is_url(url) || !http_client_takes(url)))
        settings_complain(checker, CONFIG_DELIVERY_PUSH_URL,
            "delivery.push_url must be a URL like https://push.example.org/wake?key=KEY, without "
            "user and "
            "password.");
}

/* The value is a secret: do not print it. */
static void check_database(struct checker *checker)
{
    const char *url = config_text(checker->config, CONFIG_SQL_URL);

    if (url[0] != '\0' && strncmp(url, "sqlite:", 7) != 0 && strncmp(url, "postgres://", 11) != 0 &&
        strncmp(url, "postgresql://", 13) != 0)
        settings_complain(checker, CONFIG_SQL_URL,
            "sql.url must be sqlite:PATH or postgresql://USER:PASSWORD@HOST/NAME.");
}

static void check_levels(struct checker *checker)
{
    char word[WORD_SIZE];
    enum log_level level;
    size_t position = 0;

    while (next_word(checker, CONFIG_LOG_LEVELS, &position, word)) {
        const char *equals = strchr(word, '=');

        if (equals == NULL || equals == word || log_level_parse(equals + 1, &level) != 0)
            settings_complain_value(checker, CONFIG_LOG_LEVELS, word,
                "MODULE=LEVEL with a level of debug, info, warn or error");
    }
}

/* Check the form alone: a new server is perhaps not public yet. */
static void check_service(struct checker *checker)
{
    const char *text = config_text(checker->config, CONFIG_AUTH_SERVICE_DID);
    struct buffer url = { 0 };
    enum did_refusal refusal;
    char problem[WHY_SIZE];
    struct did did;

    if (text[0] == '\0')
        return;
    refusal = did_parse(span_of(text), &did);
    if (refusal == DID_OK && did.method == DID_METHOD_WEB)
        refusal = did_web_url(span_of(text), true, &url);
    buffer_free(&url);
    if (refusal == DID_OK)
        return;
    snprintf(problem, sizeof problem,
        "auth.service_did is '%.100s'; it must be a DID like did:web:chat.example.org: %s", text,
        did_refusal_text(refusal));
    settings_complain(checker, CONFIG_AUTH_SERVICE_DID, problem);
}

static void check_providers(struct checker *checker)
{
    struct session_provider provider;
    char word[WORD_SIZE];
    char copy[WORD_SIZE];
    size_t position = 0;
    size_t count = 0;
    char problem[WHY_SIZE];

    while (next_word(checker, CONFIG_AUTH_PROVIDERS, &position, word)) {
        memcpy(copy, word, sizeof copy);
        if (!settings_parse_provider(copy, &provider))
            settings_complain_value(checker, CONFIG_AUTH_PROVIDERS, word,
                "NAME+ISSUER+KEYS+CLIENT_ID, with https:// in ISSUER, and KEYS a URL or the "
                "absolute "
                "path of a file");
        count++;
    }
    snprintf(problem, sizeof problem, "auth.providers has %zu providers; the most is %d.", count,
        AUTH_PROVIDERS_MAX);
    if (count > AUTH_PROVIDERS_MAX)
        settings_complain(checker, CONFIG_AUTH_PROVIDERS, problem);
}

/* ---- settings that belong together ------------------------------------------------------------------ */

static void check_certificate(struct checker *checker)
{
    bool has_certificate = config_text(checker->config, CONFIG_SERVER_TLS_CERTIFICATE)[0] != '\0';
    bool has_key = config_text(checker->config, CONFIG_SERVER_TLS_KEY)[0] != '\0';

    if (has_certificate && !has_key)
        settings_complain(checker, CONFIG_SERVER_TLS_CERTIFICATE,
            "server.tls_key is not set; name the PEM file with the certificate's private key.");
    if (has_key && !has_certificate)
        settings_complain(checker, CONFIG_SERVER_TLS_KEY,
            "server.tls_certificate is not set; name the PEM file with the certificate chain.");
}

static void check_admin(struct checker *checker)
{
    const char *listen = config_text(checker->config, CONFIG_ADMIN_LISTEN);
    char problem[WHY_SIZE];

    if (admin_is_loopback(listen) ||
        config_text(checker->config, CONFIG_ADMIN_TOKEN_FILE)[0] != '\0')
        return;
    snprintf(problem, sizeof problem,
        "admin.listen is %.100s, which other machines can reach; set admin.token_file to a file "
        "with "
        "your own token, or listen on 127.0.0.1.",
        listen);
    settings_complain(checker, CONFIG_ADMIN_LISTEN, problem);
}

int settings_check(const struct config *config, struct buffer *errors)
{
    struct checker checker = { .config = config, .errors = errors };

    tr_assert(errors != NULL);
    check_listen(&checker, CONFIG_SERVER_LISTEN);
    check_listen(&checker, CONFIG_ADMIN_LISTEN);
    check_proxies(&checker);
    check_certificate(&checker);
    check_admin(&checker);
    check_database(&checker);
    check_service(&checker);
    check_providers(&checker);
    check_url(&checker, CONFIG_AUTH_PLC_DIRECTORY, "a URL like https://plc.directory");
    if (config_text(config, CONFIG_TRACE_URL)[0] != '\0')
        check_url(&checker, CONFIG_TRACE_URL, "a URL like http://127.0.0.1:4318/v1/traces");
    check_push(&checker);
    check_levels(&checker);
    if (errors->failed != 0)
        return errors->failed;
    return checker.is_wrong ? TR_EINVAL : 0;
}
