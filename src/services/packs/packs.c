/* SPDX-License-Identifier: Apache-2.0 */
#include "services/packs/packs.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "ops/probe.h"
#include "services/packs/catalogue.h"
#include "services/packs/download.h"
#include "services/packs/upload.h"

static int probe_open(struct packs *packs, char *why, size_t why_size)
{
    (void)why;
    (void)why_size;
    return probe_start(packs->system, packs->calls.sql, packs->supervisor, &packs->probe);
}

static void probe_close(struct packs *packs)
{
    probe_stop(&packs->probe);
}

/* The parts in the order of their start; they stop in reverse. A part that fails fills `why`, or
 * leaves it empty and its code explains. A part that failed is stopped too. */
static const struct {
    int (*start)(struct packs *packs, char *why, size_t why_size);
    void (*stop)(struct packs *packs);
} parts[] = {
    { probe_open, probe_close },
    { objects_start, objects_stop },
    { catalogue_start, catalogue_stop },
    { uploads_start, uploads_stop },
    { downloads_start, downloads_stop },
};
enum { PARTS = sizeof parts / sizeof parts[0] };

static struct packs_settings settings_of(const struct config *config)
{
    if (config == NULL) /* tests: the defaults of the table */
        return (struct packs_settings){
            .hashes_max = 2, .downloads_per_user = 8, .downloads_per_address = 64
        };
    return (struct packs_settings){
        .quota_bytes = config_number(config, CONFIG_PACKS_QUOTA),
        .hashes_max = (uint32_t)config_number(config, CONFIG_PACKS_HASHES_MAX),
        .downloads_per_user = (uint32_t)config_number(config, CONFIG_PACKS_DOWNLOADS_PER_USER),
        .downloads_per_address =
            (uint32_t)config_number(config, CONFIG_PACKS_DOWNLOADS_PER_ADDRESS),
        .requests_per_address = (uint32_t)config_number(config, CONFIG_PACKS_REQUESTS_PER_ADDRESS),
        .rate_max = config_number(config, CONFIG_PACKS_RATE_MAX),
    };
}

static void packs_free(struct packs *packs)
{
    base_free(packs->data_path);
    base_free(packs);
}

void packs_copy_text(char *to, size_t size, struct span text)
{
    size_t length = text.size < size ? text.size : size - 1;

    tr_assert(size > 0);
    memcpy(to, text.at == NULL ? "" : text.at, length);
    to[length] = '\0';
}

void packs_stop_actor(tr_sender *actor)
{
    if (actor->box == NULL)
        return;
    (void)tr_stop(tr_sender_weaken(*actor));
    (void)tr_sender_wait_closed(*actor, 0);
    tr_sender_drop(actor);
}

static void stop_parts(struct packs *packs, size_t count)
{
    while (count > 0)
        parts[--count].stop(packs);
}

static int start_parts(struct packs *packs, char *why, size_t why_size)
{
    for (size_t i = 0; i < PARTS; i++) {
        int rc = parts[i].start(packs, why, why_size);

        if (rc < 0) {
            stop_parts(packs, i + 1);
            return rc;
        }
    }
    return 0;
}

int packs_start(const struct service_context *context, char *why, size_t why_size, void **ret_state)
{
    struct packs *packs;
    int rc;

    if (context->auth == NULL) {
        (void)snprintf(why, why_size,
            "auth.service_did is not set: write the DID clients address this server by, such as "
            "did:web:packs.example.org, under [auth], or start with --dev");
        return TR_EINVAL;
    }
    why[0] = '\0';
    packs = base_calloc(sizeof *packs);
    if (packs == NULL)
        return TR_ENOMEM;
    packs->system = context->system;
    packs->supervisor = context->supervisor;
    packs->calls = (struct call_service){
        .env = tr_system_env(context->system), .sql = context->sql, .is_rest = true
    };
    packs->version = context->version == NULL ? "" : context->version;
    packs->started_ns = packs->calls.env->now_ns(packs->calls.env->data);
    packs->settings = settings_of(context->config);
    packs->data_path = base_strdup(context->data_path);
    rc = packs->data_path == NULL ? TR_ENOMEM : start_parts(packs, why, why_size);
    if (rc < 0) {
        if (why[0] == '\0')
            (void)snprintf(
                why, why_size, "The packs service cannot start: %s.", sql_error_text(rc));
        packs_free(packs);
        return rc;
    }
    *ret_state = packs;
    return 0;
}

void packs_stop(void *state)
{
    stop_parts(state, PARTS);
    packs_free(state);
}

bool packs_is_ready(void *state, char *why, size_t why_size)
{
    struct packs *packs = state;

    return probe_is_ready(packs->probe, why, why_size) && catalogue_is_ready(packs, why, why_size);
}
