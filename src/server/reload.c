/* SPDX-License-Identifier: Apache-2.0 */
/* reload.c: the settings that may change while the server runs: log levels, rates, the sampling of
 * traces, the providers' key files and the TLS certificate. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <troupe/inspect.h>

#include "base/assert.h"
#include "server/parts.h"
#include "server/settings.h"
#include "support/log.h"

/* ---- log ------------------------------------------------------------------------------------- */

static int apply_module(struct span word, char *why, size_t why_size)
{
    char text[64];
    char *equals;
    enum log_level level;

    snprintf(text, sizeof text, "%.*s", (int)(word.size < 100 ? word.size : 100), word.at);
    equals = strchr(text, '=');
    if (equals != NULL) {
        *equals = '\0';
        if (log_level_parse(equals + 1, &level) == 0 && log_level_set(text, (int)level) == 0)
            return 0;
    }
    snprintf(
        why, why_size, "log.levels has '%.*s'; it must be MODULE=LEVEL.", (int)word.size, word.at);
    return TR_EINVAL;
}

int server_apply_log(const struct config *config, char *why, size_t why_size)
{
    bool is_json = strcmp(config_text(config, CONFIG_LOG_FORMAT), "json") == 0;
    enum log_level level = LOG_INFO;
    struct span word;
    const char *module;
    size_t position = 0;
    int ignored;
    int rc = 0;

    (void)log_level_parse(config_text(config, CONFIG_LOG_LEVEL), &level);
    log_actor_source(tr_thread_actor);
    log_setup(STDERR_FILENO, is_json ? LOG_JSON : LOG_LOGFMT, level);
    for (size_t i = 0; (module = log_module_at(i, &ignored)) != NULL; i++)
        (void)log_level_set(module, -1);
    while (rc == 0 && config_next(config, CONFIG_LOG_LEVELS, &position, &word))
        rc = apply_module(word, why, why_size);
    return rc;
}

/* ---- reload ------------------------------------------------------------------------------------ */

static void apply_reload(struct server *server)
{
    const struct config *config = &server->config;
    char why[SERVER_WHY_SIZE];

    if (server_apply_log(config, why, sizeof why) != 0)
        LOG(LOG_ERROR, "ops", "reload", LOG_TEXT("why", why));
    otlp_set_sample(server->otlp, (uint32_t)config_number(config, CONFIG_TRACE_SAMPLE));
    server_reload_auth(server);
    if (config_text(config, CONFIG_SERVER_TLS_CERTIFICATE)[0] != '\0' &&
        http_server_reload_tls(server->public_http, why, sizeof why) != 0)
        LOG(LOG_ERROR, "ops", "reload: the server keeps its old certificate", LOG_TEXT("why", why));
}

/* Log each line of a text. */
static void log_lines(enum log_level level, const char *event, const struct buffer *lines)
{
    struct span rest = { lines->bytes, lines->size };

    while (rest.size > 0) {
        const char *end = memchr(rest.at, '\n', rest.size);
        size_t size = end == NULL ? rest.size : (size_t)(end - rest.at);

        LOG(level, "ops", event, LOG_SPAN("line", ((struct span){ rest.at, size })));
        size += end != NULL;
        rest.at += size;
        rest.size -= size;
    }
}

void server_reload(struct server *server)
{
    const struct tr_env *env = tr_env_real();
    struct buffer text = { 0 };
    struct config fresh;
    int rc;

    tr_assert(server->sources != NULL);
    systemd_notify_reloading(&server->systemd, env->now_ns(env->data));
    rc = config_load(server->sources, &fresh, &text);
    if (rc == 0) {
        rc = settings_check(&fresh, &text);
        if (rc != 0)
            config_fini(&fresh);
    }
    if (rc != 0) {
        log_lines(LOG_ERROR, "the settings have errors and were not reloaded", &text);
    } else {
        unsigned applied = config_reload(&server->config, &fresh, &text);

        apply_reload(server);
        log_lines(LOG_INFO, "reload", &text);
        LOG(LOG_INFO, "ops", "the settings were reloaded", LOG_INT("applied", applied));
        config_fini(&fresh);
    }
    buffer_free(&text);
    systemd_notify(&server->systemd, "READY=1\nSTATUS=serving");
}
