/* SPDX-License-Identifier: Apache-2.0 */
/* auth.c: the authentication of callers: the verifier of service tokens, the sessions of users, and the
 * HTTP client that fetches documents and keys for both. */
#include <stdio.h>
#include <string.h>

#include "auth/key_set.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/key.h"
#include "http/client.h"
#include "ops/secret.h"
#include "server/parts.h"
#include "server/settings.h"
#include "support/log.h"

enum { ADMINS_MAX = 64 };

static struct tr_rate rate_of(
    const struct config *config, enum config_key count, enum config_key burst)
{
    return (struct tr_rate){ .count = config_number(config, count),
        .period_ns = TR_SECONDS(1),
        .burst = config_number(config, burst) };
}

static uint32_t seconds_of(const struct config *config, enum config_key key)
{
    return (uint32_t)(config_number(config, key) / TR_SECONDS(1));
}

static int start_verifier(struct server *server)
{
    const struct config *config = &server->config;
    const char *fragment = config_text(config, CONFIG_AUTH_SERVICE_FRAGMENT);

    return auth_start(server->system,
        &(struct auth_options){ .service_did = server->service_did,
            .service_fragment = fragment[0] == '\0' ? NULL : fragment,
            .allow_did_key = config_is_on(config, CONFIG_SERVER_DEV),
            .allow_private = config_is_on(config, CONFIG_AUTH_ALLOW_PRIVATE),
            .plc_directory = config_text(config, CONFIG_AUTH_PLC_DIRECTORY),
            .client = server->client,
            .sql = server->sql,
            .session_key = server->session_key,
            .lifetime_s_max = seconds_of(config, CONFIG_AUTH_TOKEN_LIFETIME_MAX),
            .per_did = rate_of(config, CONFIG_AUTH_RATE_PER_DID, CONFIG_AUTH_BURST_PER_DID),
            .per_address =
                rate_of(config, CONFIG_AUTH_RATE_PER_ADDRESS, CONFIG_AUTH_BURST_PER_ADDRESS),
            .tokens_max = (uint32_t)config_number(config, CONFIG_AUTH_TOKENS_MAX),
            .key_life_s = seconds_of(config, CONFIG_AUTH_KEY_LIFE),
            .key_stale_s = seconds_of(config, CONFIG_AUTH_KEY_STALE),
            .supervisor = server->tree.senders[SERVER_AUTH] },
        &server->auth);
}

/* ---- sessions ------------------------------------------------------------------------------- */

/* Load the secret that signs session tokens. The first start creates it. */
static int load_session_key(struct server *server, char *why, size_t why_size)
{
    char path[PATH_MAX + 32];
    struct secret secret;
    int rc;

    snprintf(path, sizeof path, "%s/session.secret", server->data_path);
    rc = secret_load(&secret, path, SECRET_BASE64URL, why, why_size);
    if (rc != 0)
        return rc;
    rc = crypto_key_from_private(
        CRYPTO_HS256, secret.text, strlen(secret.text), &server->session_key);
    if (rc != 0)
        snprintf(why, why_size, "%s: %s.", path, tr_error_text(rc));
    return rc;
}

/* Copy a word into auth_texts. */
static char *copy_word(char **to, struct span word)
{
    char *text = *to;

    memcpy(text, word.at, word.size);
    text[word.size] = '\0';
    *to += word.size + 1;
    return text;
}

int server_check_key_files(const struct config *config, char *why, size_t why_size)
{
    char what[KEY_SET_WHY_CHARS] = "";
    struct session_provider provider;
    char copy[PATH_MAX + 1024];
    struct span word;
    size_t position = 0;
    int rc;

    while (config_next(config, CONFIG_AUTH_PROVIDERS, &position, &word)) {
        struct key_set *keys = NULL;

        snprintf(copy, sizeof copy, "%.*s", (int)word.size, word.at);
        if (!settings_parse_provider(copy, &provider) || provider.keys_file == NULL)
            continue;
        rc = key_set_load(tr_env_real(), provider.keys_file,
            &(struct key_set_options){ .skip_unknown = true }, &keys, what);
        if (rc != 0) {
            snprintf(why, why_size, "auth.providers: %s: %s", provider.keys_file, what);
            return rc;
        }
        key_set_destroy(keys);
    }
    return 0;
}

static int collect_providers(struct server *server, size_t *ret_count, char *why, size_t why_size)
{
    const struct config *config = &server->config;
    size_t size = 2 * (strlen(config_text(config, CONFIG_AUTH_PROVIDERS)) +
                          strlen(config_text(config, CONFIG_AUTH_ADMINS)) + 2);
    struct span word;
    size_t position = 0;
    size_t count = 0;
    char *to;

    server->providers = base_calloc(AUTH_PROVIDERS_MAX * sizeof *server->providers);
    server->admins = base_calloc((ADMINS_MAX + 1) * sizeof(char *));
    server->auth_texts = base_alloc(size);
    if (server->providers == NULL || server->admins == NULL || server->auth_texts == NULL) {
        snprintf(why, why_size, "%s", tr_error_text(TR_ENOMEM));
        return TR_ENOMEM;
    }
    to = server->auth_texts;
    while (config_next(config, CONFIG_AUTH_PROVIDERS, &position, &word)) {
        if (count == AUTH_PROVIDERS_MAX ||
            !settings_parse_provider(copy_word(&to, word), &server->providers[count])) {
            snprintf(why, why_size,
                "auth.providers has '%.*s'; it takes at most %d of NAME+ISSUER+KEYS+CLIENT_ID.",
                (int)word.size, word.at, AUTH_PROVIDERS_MAX);
            return TR_EINVAL;
        }
        count++;
    }
    *ret_count = count;
    position = 0;
    for (size_t i = 0; config_next(config, CONFIG_AUTH_ADMINS, &position, &word); i++) {
        if (i == ADMINS_MAX) {
            snprintf(
                why, why_size, "auth.admins has more than %d addresses, the most.", ADMINS_MAX);
            return TR_ELIMIT;
        }
        server->admins[i] = copy_word(&to, word);
    }
    return 0;
}

/* On failure `why` may stay empty: the caller then uses the text of the code. */
static int start_sessions(struct server *server, size_t provider_count, char *why, size_t why_size)
{
    const struct config *config = &server->config;
    int rc = sessions_start(server->system,
        &(struct session_options){ .auth = server->auth,
            .sql = server->sql,
            .client = server->client,
            .key = server->session_key,
            .service_did = server->service_did,
            .providers = server->providers,
            .provider_count = provider_count,
            .admins = server->admins,
            .sign_ins = { .count = config_number(config, CONFIG_AUTH_SIGN_INS_PER_MINUTE),
                .period_ns = TR_SECONDS(60),
                .burst = config_number(config, CONFIG_AUTH_SIGN_IN_BURST) },
            .supervisor = server->tree.senders[SERVER_AUTH] },
        &server->sessions);

    if (rc != 0)
        return rc;
    rc = sessions_load_keys(server->sessions, why, why_size);
    if (rc != 0)
        return rc;
    sessions_routes(server->sessions, server->session_routes);
    server->session_service.routes = server->session_routes;
    server->session_service.route_count = AUTH_SESSION_ROUTES;
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------ */

int server_start_auth(struct server *server, char *why, size_t why_size)
{
    const struct config *config = &server->config;
    size_t provider_count = 0;
    int rc;

    tr_assert(server->sql != NULL);
    tr_assert(server->client == NULL);
    rc = collect_providers(server, &provider_count, why, why_size);
    if (rc == 0 && provider_count > 0)
        rc = load_session_key(server, why, why_size);
    if (rc != 0)
        return rc;
    rc = http_client_start(server->system,
        &(struct http_client_options){
            .allow_private = config_is_on(config, CONFIG_AUTH_ALLOW_PRIVATE),
            .supervisor = server->tree.senders[SERVER_AUTH] },
        &server->client);
    if (rc == 0)
        rc = start_verifier(server);
    why[0] = '\0';
    if (rc == 0 && provider_count > 0)
        rc = start_sessions(server, provider_count, why, why_size);
    if (rc != 0 && why[0] == '\0')
        snprintf(why, why_size, "Authentication could not start: %s.", tr_error_text(rc));
    return rc;
}

void server_reload_auth(struct server *server)
{
    const struct config *config = &server->config;
    struct tr_rate per_did = rate_of(config, CONFIG_AUTH_RATE_PER_DID, CONFIG_AUTH_BURST_PER_DID);
    struct tr_rate per_address =
        rate_of(config, CONFIG_AUTH_RATE_PER_ADDRESS, CONFIG_AUTH_BURST_PER_ADDRESS);
    char why[SERVER_WHY_SIZE];

    if (server->auth != NULL && auth_change_rates(server->auth, &per_did, &per_address) != 0)
        LOG_PLAIN(LOG_ERROR, "ops", "reload: the verifier did not take the new rates");
    if (server->sessions != NULL && sessions_load_keys(server->sessions, why, sizeof why) != 0)
        LOG(LOG_ERROR, "ops", "reload: a provider keeps its old keys", LOG_TEXT("why", why));
}

void server_stop_auth(struct server *server)
{
    if (server->sessions != NULL)
        sessions_stop(&server->sessions);
    if (server->auth != NULL)
        auth_stop(&server->auth);
    if (server->client != NULL)
        http_client_stop(&server->client);
    crypto_key_unref(&server->session_key);
    base_free(server->providers);
    base_free(server->admins);
    base_free(server->auth_texts);
}
