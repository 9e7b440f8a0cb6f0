/* SPDX-License-Identifier: Apache-2.0 */
/* auth.c: starts, stops and changes the verifier. */
#include "auth/auth.h"

#include <stdio.h>
#include <string.h>

#include "auth/verifier.h"
#include "base/alloc.h"
#include "base/assert.h"

static const struct tr_rate per_did_default = {
    .count = 100, .period_ns = TR_SECONDS(1), .burst = 200
};
static const struct tr_rate per_address_default = {
    .count = 200, .period_ns = TR_SECONDS(1), .burst = 400
};

/* ---- start and stop ------------------------------------------------------------------------- */

void auth_ref(struct auth *auth)
{
    uint32_t before = atomic_fetch_add_explicit(&auth->holders, 1, memory_order_relaxed);

    tr_assert(before > 0);
}

void auth_unref(struct auth *auth)
{
    if (auth == NULL || atomic_fetch_sub_explicit(&auth->holders, 1, memory_order_acq_rel) > 1)
        return;
    crypto_key_unref(&auth->session_key);
    did_key_cache_fini(&auth->did_keys);
    base_free(auth->service_did);
    base_free(auth->service_name);
    base_free(auth->plc_directory);
    base_free(auth);
}

static char *join_name(const char *did, const char *fragment)
{
    size_t size = strlen(did) + 1 + strlen(fragment) + 1;
    char *name = base_alloc(size);

    if (name != NULL)
        snprintf(name, size, "%s#%s", did, fragment);
    return name;
}

static int keep_texts(struct auth *auth, const struct auth_options *options)
{
    auth->service_did = base_strdup(options->service_did);
    auth->plc_directory = base_strdup(
        options->plc_directory == NULL ? "https://plc.directory" : options->plc_directory);
    if (auth->service_did == NULL || auth->plc_directory == NULL)
        return TR_ENOMEM;
    auth->audiences[auth->audience_count++] = span_of(auth->service_did);
    if (options->service_fragment == NULL)
        return 0;
    auth->service_name = join_name(options->service_did, options->service_fragment);
    if (auth->service_name == NULL)
        return TR_ENOMEM;
    auth->audiences[auth->audience_count++] = span_of(auth->service_name);
    return 0;
}

/* struct auth owns this cache, because work of an earlier life may be on the pool when the verifier
 * restarts. */
static int init_did_keys(struct auth *auth)
{
    enum { KEYS_MAX = 8192 };
    const struct tr_env *env = auth->env;

    if (!auth->allow_did_key)
        return 0;
    return did_key_cache_init(&auth->did_keys, KEYS_MAX,
        (struct base_siphash_key){ env->random(env->data), env->random(env->data) });
}

int auth_start(struct tr_system *system, const struct auth_options *options, struct auth **ret_auth)
{
    struct auth *auth = base_calloc(sizeof *auth);
    struct auth_verifier verifier = { .auth = auth };
    int rc;

    tr_assert(system != NULL);
    tr_assert(options->service_did != NULL);
    if (auth == NULL)
        return TR_ENOMEM;
    atomic_init(&auth->holders, 1);
    auth->system = system;
    auth->env = tr_system_env(system);
    auth->client = options->client;
    auth->sql = options->sql;
    if (options->session_key != NULL)
        auth->session_key = crypto_key_ref(options->session_key);
    auth->allow_did_key = options->allow_did_key;
    auth->allow_private = options->allow_private;
    auth->lifetime_s_max = options->lifetime_s_max;
    auth->key_life_s = options->key_life_s == 0 ? 300 : options->key_life_s;
    auth->key_stale_s = options->key_stale_s == 0 ? 3600 : options->key_stale_s;
    auth->fetch_timeout_ns =
        options->fetch_timeout_ns == 0 ? TR_SECONDS(5) : options->fetch_timeout_ns;
    auth->tokens_max = options->tokens_max == 0 ? 65536 : options->tokens_max;
    auth->per_did = options->per_did.count == 0 ? per_did_default : options->per_did;
    auth->per_address =
        options->per_address.count == 0 ? per_address_default : options->per_address;
    rc = tr_rate_is_valid(&auth->per_did) && tr_rate_is_valid(&auth->per_address) ? 0 : TR_EINVAL;
    if (rc == 0)
        rc = keep_texts(auth, options);
    if (rc == 0)
        rc = init_did_keys(auth);
    if (rc == 0)
        rc = tr_spawn(system, &auth_verifier_type, &verifier,
            &(struct tr_spawn_options){ .name = "auth verifier",
                .owner = "auth",
                .ret_done = &auth->done,
                .supervisor = options->supervisor,
                .box = { .capacity = TR_CAPACITY_MAX, .full = TR_FULL_FAIL } },
            &auth->verifier);
    if (rc < 0) {
        auth_unref(auth);
        return rc;
    }
    /* The actor's start hook may fail; its answer to a message shows that it runs. */
    rc = auth_change_rates(auth, &auth->per_did, &auth->per_address);
    if (rc < 0) {
        auth_stop(&auth);
        return rc == TR_ETIMEOUT ? rc : TR_ENOMEM;
    }
    *ret_auth = auth;
    return 0;
}

void auth_stop(struct auth **auth)
{
    if (*auth == NULL)
        return;
    tr_sender_drop(&(*auth)->verifier);
    (void)tr_done_wait(&(*auth)->done, NULL, NULL, 0); /* the actor reads *auth until it ends */
    auth_unref(*auth);
    *auth = NULL;
}

int auth_change_rates(
    struct auth *auth, const struct tr_rate *per_did, const struct tr_rate *per_address)
{
    struct auth_verifier_message message = { .kind = VERIFIER_RATES };

    if (!tr_rate_is_valid(per_did) || !tr_rate_is_valid(per_address))
        return TR_EINVAL;
    message.per_did = *per_did;
    message.per_address = *per_address;
    return tr_ask_wait(auth->verifier, &message, sizeof message, NULL, 0, TR_SECONDS(5));
}

static int auth_tell_forget(struct auth *auth, struct span issuer)
{
    struct auth_verifier_message message = { .kind = VERIFIER_FORGET, .token_size = issuer.size };
    int rc;

    message.token = base_alloc(issuer.size + 1);
    if (message.token == NULL)
        return TR_ENOMEM;
    memcpy(message.token, issuer.at, issuer.size);
    rc = tr_try_tell_with(
        auth->verifier, &message, sizeof message, &(struct tr_send_options){ .lane = TR_CONTROL });
    if (rc < 0)
        base_free(message.token);
    return rc;
}

void auth_forget(struct auth *auth, struct span issuer)
{
    tr_assert(issuer.at != NULL);
    /* The end of a session must not be lost. If the message does not fit, verify all tokens again. */
    if (auth_tell_forget(auth, issuer) < 0)
        atomic_fetch_add_explicit(&auth->forget_all, 1, memory_order_release);
}
