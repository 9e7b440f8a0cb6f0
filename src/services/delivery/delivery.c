/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/delivery.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "services/delivery/api/api.h"
#include "services/delivery/convo/convo.h"
#include "services/delivery/convo/direct.h"
#include "services/delivery/convo/receipt.h"
#include "services/delivery/delivery_metrics.h"
#include "services/delivery/push/push.h"
#include "services/delivery/store/retention.h"

void delivery_end_actor(tr_sender *sender)
{
    if (sender->box == NULL)
        return;
    (void)tr_stop(tr_sender_weaken(*sender));
    (void)tr_sender_wait_closed(*sender, 0);
    tr_sender_drop(sender);
}

/* False: conversations or transactions still use *delivery. */
static bool stop_actors(struct delivery *delivery)
{
    bool is_over = direct_stop(&delivery->direct);

    push_stop(delivery);
    if (delivery->convos != NULL)
        (void)tr_registry_close(&delivery->convos, TR_SECONDS(30));
    delivery_end_actor(&delivery->retention);
    delivery_end_actor(&delivery->cleanup);
    if (delivery->convos == NULL)
        push_free(delivery);
    return is_over && delivery->convos == NULL;
}

static int start_actors(struct delivery *delivery, const struct config *config)
{
    int rc = tr_registry_create(delivery->system,
        &(struct tr_registry_options){ .name = "convos",
            .type = &convo_type,
            .make = convo_slot_make,
            .data = delivery,
            .box = { .capacity = 1024, .full = TR_FULL_FAIL },
            .idle_ns = TR_SECONDS(300),
            .live_max = 200000 },
        &delivery->convos);

    if (rc == 0)
        rc = cleanup_start(delivery, &delivery->cleanup);
    if (rc == 0)
        rc = retention_start(delivery, &delivery->retention);
    if (rc == 0)
        rc = push_start(delivery, config);
    if (rc == 0)
        rc = direct_start(delivery, &delivery->direct);
    if (rc < 0)
        (void)stop_actors(delivery);
    return rc;
}

static void delivery_free(struct delivery *delivery)
{
    crypto_key_unref(&delivery->ticket_key);
    crypto_key_unref(&delivery->receipt_key);
    base_free(delivery->service_did);
    base_free(delivery);
}

/* The table of settings allows these three words; without settings the default is "checked". */
static enum delivery_mode mode_of(const struct config *config)
{
    const char *text = config == NULL ? "checked" : config_text(config, CONFIG_DELIVERY_MODE);

    if (strcmp(text, "blind") == 0)
        return DELIVERY_BLIND;
    return strcmp(text, "assisted") == 0 ? DELIVERY_ASSISTED : DELIVERY_CHECKED;
}

int delivery_start(
    const struct service_context *context, char *why, size_t why_size, void **ret_state)
{
    struct delivery *delivery;
    int rc;

    if (context->auth == NULL) {
        (void)snprintf(why, why_size,
            "auth.service_did is not set: write the DID clients address this server by, such as "
            "did:web:chat.example.org, under [auth], or start with --dev");
        return TR_EINVAL;
    }
    why[0] = '\0';
    delivery_metrics_start();
    delivery = base_calloc(sizeof *delivery);
    if (delivery == NULL)
        return TR_ENOMEM;
    delivery->system = context->system;
    delivery->supervisor = context->supervisor;
    delivery->env = delivery->calls.env = tr_system_env(context->system);
    delivery->sql = delivery->calls.sql = context->sql;
    delivery->mode = mode_of(context->config);
    delivery->app_window = 2;
    delivery->members_max = 1000;
    delivery->lease_s = 600;
    delivery->turn_ms = 500;
    delivery->calls.answer_bytes_max = UINT64_C(256) << 20;
    delivery->quarantine_ms = INT64_C(600000);
    delivery->log_kept_s = INT64_C(30) * 86400;
    delivery->service_did =
        base_strdup(context->service_did == NULL ? "did:web:localhost" : context->service_did);
    rc = delivery->service_did == NULL ? TR_ENOMEM
                                       : crypto_key_generate(CRYPTO_HS256, &delivery->ticket_key);
    if (rc == 0)
        rc = receipt_key_open(context->data_path, why, why_size, &delivery->receipt_key);
    if (rc == 0)
        rc = start_actors(delivery, context->config);
    if (rc < 0) {
        if (why[0] == '\0')
            (void)snprintf(why, why_size, "delivery could not start: %s", tr_error_text(rc));
        delivery_free(delivery);
        return rc;
    }
    tr_assert(delivery->convos != NULL && delivery->direct != NULL);
    *ret_state = delivery;
    return 0;
}

void delivery_stop(void *state)
{
    struct delivery *delivery = state;

    tr_assert(delivery != NULL);
    if (stop_actors(delivery))
        delivery_free(delivery); /* else the process frees it */
}

bool delivery_is_ready(void *state, char *why, size_t why_size)
{
    return sql_is_healthy(((struct delivery *)state)->sql, why, why_size);
}
