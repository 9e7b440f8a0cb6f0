/* SPDX-License-Identifier: Apache-2.0 */
/* cache.c: a request with a token that was verified before, as its gate does it (SHA-256 of the
 * token, ask the verifier, compare aud, lxm and exp), beside the check of an ES256K signature. CPU time
 * of the whole process, in turns within one run; medians. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "auth/auth.h"
#include "auth/verifier.h"
#include "auth/did.h"
#include "auth/jwt.h"
#include "base/alloc.h"
#include "crypto/digest.h"

enum { ROUNDS = 31, CALLERS = 32, HITS = 1000, CHECKS = 500 };

static double cpu_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now); /* tidy: allow clock_gettime, it is measured */
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, by_size);
    return values[count / 2];
}

static void must(int is_true, const char *what)
{
    if (is_true)
        return;
    fprintf(stderr, "auth bench: %s\n", what);
    exit(1);
}

/* ---- a caller that does the work of a gate, again and again --------------------------------- */

struct caller {
    struct auth *auth;
    struct span token;
    struct span lxm;
    uint32_t left;
    tr_reply_handle reply;
};

struct caller_message {
    uint32_t count;
};

static void look(struct caller *caller, struct tr_context *ctx)
{
    struct auth_verifier_message message = { .kind = VERIFIER_CHECK, .address = { 4, 127, 0, 0, 1 } };

    message.address_size = 5;
    crypto_sha256(caller->token.at, caller->token.size, message.hash);
    must(tr_ask(ctx, caller->auth->verifier, &message, sizeof message, &(struct tr_ask_options){ 0 }) ==
             0,
        "the verifier was not asked");
}

static enum tr_next caller_handle(void *self, struct tr_context *ctx, void *message)
{
    struct caller *caller = self;

    caller->left = ((struct caller_message *)message)->count;
    caller->reply = tr_reply_take(ctx);
    look(caller, ctx);
    return TR_GO;
}

static int is_right(const struct caller *caller, const struct auth_answer *answer)
{
    const char *at = answer->texts + answer->issuer_size;
    struct span audience = { at, answer->audience_size };
    struct span lxm = { at + answer->audience_size, answer->lxm_size };
    const struct tr_env *env = caller->auth->env;

    return answer->verdict == VERDICT_OK && answer->expires_s * 1000000000 > env->wall_ns(env->data) &&
           span_equal(audience, caller->auth->audiences[0]) && span_equal(lxm, caller->lxm);
}

static enum tr_next caller_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct caller *caller = self;

    must(event->status == 0 && is_right(caller, event->value), "it is not the cached answer");
    if (--caller->left > 0)
        look(caller, ctx);
    else
        tr_reply_send(&caller->reply, 0, NULL, 0);
    return TR_GO;
}

static const struct tr_type caller_type = {
    .name = "caller",
    .message_size = sizeof(struct caller_message),
    .state_size = sizeof(struct caller),
    .handle = caller_handle,
    .event = caller_event,
};

/* ---- the two sides -------------------------------------------------------------------------- */

static void all_look(const tr_sender *callers, uint32_t count)
{
    struct tr_future *futures[CALLERS];

    for (int i = 0; i < CALLERS; i++)
        must(tr_ask_future(callers[i], &(struct caller_message){ count },
                 sizeof(struct caller_message), 0, &futures[i]) == 0,
            "a caller was not asked");
    for (int i = 0; i < CALLERS; i++) {
        must(tr_future_wait(futures[i], NULL, 0, NULL, 0) == 0, "a caller failed");
        tr_future_drop(&futures[i]);
    }
}

static void verify_first(struct auth *auth, struct span token)
{
    struct auth_verifier_message message = { .kind = VERIFIER_VERIFY, .token_size = token.size };
    union auth_answer_room room;

    message.token = base_alloc(token.size);
    must(message.token != NULL, "memory");
    memcpy(message.token, token.at, token.size);
    crypto_sha256(token.at, token.size, message.hash);
    must(tr_ask_wait(auth->verifier, &message, sizeof message, &room, sizeof room, 0) == 0 &&
             room.answer.verdict == VERDICT_OK,
        "the token was not accepted");
}

static double hit_ns(const tr_sender *callers)
{
    double before = cpu_ns();

    all_look(callers, HITS);
    return (cpu_ns() - before) / ((double)CALLERS * HITS);
}

static double check_ns(const struct jwt *jwt, const struct crypto_key *key)
{
    double before = cpu_ns();

    for (int i = 0; i < CHECKS; i++)
        must(jwt_verify(jwt, key) == JWT_OK, "the signature");
    return (cpu_ns() - before) / CHECKS;
}

static double hash_ns(struct span token)
{
    unsigned char hash[32];
    double before = cpu_ns();

    for (int i = 0; i < 10 * CHECKS; i++)
        crypto_sha256(token.at, token.size, hash);
    return (cpu_ns() - before) / (10 * CHECKS);
}

int main(void)
{
    const struct tr_rate any = {
        .count = 1000000000, .period_ns = TR_SECONDS(1), .burst = 1000000000
    };
    const struct tr_env *env = tr_env_real();
    int64_t now_s = (int64_t)(env->wall_ns(env->data) / 1000000000);
    struct tr_system *system = NULL;
    struct auth *auth = NULL;
    struct crypto_key *key = NULL;
    struct buffer token = { 0 };
    struct jwt jwt = { 0 };
    tr_sender callers[CALLERS] = { 0 };
    double hits[ROUNDS], checks[ROUNDS], hashes[ROUNDS];
    char did[DID_KEY_CHARS_MAX];
    double hit, check, hash;
    struct span span;

    must(tr_system_create(&(struct tr_system_options){ .quiet = true }, &system) == 0, "system");
    must(auth_start(system,
             &(struct auth_options){ .service_did = "did:web:localhost",
                 .allow_did_key = true,
                 .per_did = any,
                 .per_address = any },
             &auth) == 0,
        "verifier");
    must(crypto_key_generate(CRYPTO_ES256K, &key) == 0 && did_key_format(key, did) > 0, "key");
    must(jwt_sign_claims(key, (struct span){ NULL, 0 },
             &(struct jwt_claims){ .iss = span_of(did),
                 .aud = SPAN("did:web:localhost"),
                 .lxm = SPAN("com.example.group.listMembers"),
                 .jti = SPAN("0123456789abcdef0123456789abcdef"),
                 .iat_s = now_s,
                 .exp_s = now_s + 110,
                 .nbf_s = -1 },
             &token) == 0,
        "token");
    span = (struct span){ token.bytes, token.size };
    must(jwt_parse(&jwt, span) == JWT_OK, "parse");
    for (int i = 0; i < CALLERS; i++)
        must(tr_spawn(system, &caller_type,
                 &(struct caller){
                     .auth = auth, .token = span, .lxm = SPAN("com.example.group.listMembers") },
                 NULL, &callers[i]) == 0,
            "spawn");
    verify_first(auth, span);
    all_look(callers, HITS); /* warm */
    for (int i = 0; i < ROUNDS; i++) {
        verify_first(auth, span); /* an entry lives a minute */
        hits[i] = hit_ns(callers);
        checks[i] = check_ns(&jwt, key);
        hashes[i] = hash_ns(span);
    }
    hit = median(hits, ROUNDS);
    check = median(checks, ROUNDS);
    hash = median(hashes, ROUNDS);
    printf("token of %zu bytes, %d callers, %u workers, %d rounds in turns, CPU time, medians\n",
        token.size, CALLERS, tr_system_workers(system), ROUNDS);
    printf("ES256K check         %9.0f ns\n", check);
    printf("cache hit            %9.0f ns   (SHA-256 %.0f ns of it)\n", hit, hash);
    printf("ratio                %9.1f      (target: 40 or more)\n", check / hit);
    jwt_fini(&jwt);
    buffer_free(&token);
    crypto_key_unref(&key);
    for (int i = 0; i < CALLERS; i++)
        tr_sender_drop(&callers[i]);
    auth_stop(&auth);
    tr_system_destroy(&system);
    return check / hit >= 40 ? 0 : 1;
}
