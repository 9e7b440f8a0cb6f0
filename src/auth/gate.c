/* SPDX-License-Identifier: Apache-2.0 */
/* gate.c: the gate of a route. It asks the verifier who the caller is, compares the token's audience,
 * method and expiry with the route's demand, and lets the request in or answers it. */
#include <stdio.h>
#include <string.h>

#include "auth/verifier.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"

/* Lives as long as its request. */
struct caller {
    struct auth_claims claims;
    char texts[];
};

static const struct auth_demand *demand_of(const struct http_request *request)
{
    return http_route(request)->demand;
}

static struct auth *auth_of(const struct http_request *request)
{
    struct auth *auth = http_gate_service(request);

    tr_assert(auth != NULL);
    return auth;
}

static void gate_refuse(struct http_request *request, const char *label, const char *text)
{
    http_add_header(request, "WWW-Authenticate", SPAN("Bearer error=\"invalid_token\""));
    http_respond_error(request, 401, label, text);
}

/* ---- the answer ----------------------------------------------------------------------------- */

static struct span take_text(const char **at, size_t size)
{
    struct span text = { *at, size };

    *at += size;
    return size == 0 ? (struct span){ NULL, 0 } : text;
}

static struct caller *caller_from(struct http_request *request, const struct auth_answer *answer)
{
    size_t size = (size_t)answer->issuer_size + answer->audience_size + answer->lxm_size +
                  answer->jti_size + answer->role_size;
    struct caller *caller = http_alloc(request, sizeof *caller + size);
    struct auth_claims *claims;
    const char *at;

    tr_assert(answer->verdict == VERDICT_OK);
    if (caller == NULL)
        return NULL;
    memcpy(caller->texts, answer->texts, size);
    at = caller->texts;
    claims = &caller->claims;
    claims->kind = answer->kind;
    claims->issued_s = answer->issued_s;
    claims->expires_s = answer->expires_s;
    claims->issuer = take_text(&at, answer->issuer_size);
    claims->audience = take_text(&at, answer->audience_size);
    claims->lxm = take_text(&at, answer->lxm_size);
    claims->jti = take_text(&at, answer->jti_size);
    claims->role = take_text(&at, answer->role_size);
    return caller;
}

static bool is_for_us(const struct auth *auth, struct span audience)
{
    for (size_t i = 0; i < auth->audience_count; i++)
        if (span_equal(auth->audiences[i], audience))
            return true;
    return false;
}

/* Check that the token is for this request: at every use, also of a cached token. */
static enum jwt_refusal check_claims(
    const struct http_request *request, const struct auth_claims *claims)
{
    const struct auth_demand *demand = demand_of(request);
    const struct auth *auth = auth_of(request);

    if (claims->expires_s * 1000000000 <= auth->env->wall_ns(auth->env->data))
        return JWT_EXPIRED;
    if (demand->session != (claims->kind == AUTH_SESSION))
        return JWT_ISSUER;
    if (claims->kind == AUTH_SESSION)
        return JWT_OK;
    if (!is_for_us(auth, claims->audience))
        return JWT_AUDIENCE;
    if (demand->lxm != NULL && claims->lxm.at == NULL)
        return JWT_METHOD_MISSING;
    if (demand->lxm != NULL && !span_is(claims->lxm, demand->lxm))
        return JWT_METHOD;
    return JWT_OK;
}

static void refuse_claims(
    struct http_request *request, const struct auth_claims *claims, enum jwt_refusal refusal)
{
    const struct auth_demand *demand = demand_of(request);
    const struct auth *auth = auth_of(request);
    const struct jwt_claims token = {
        .aud = claims->audience, .lxm = claims->lxm, .exp_s = (int64_t)claims->expires_s
    };
    const struct jwt_expect expect = {
        .now_s = (int64_t)(auth->env->wall_ns(auth->env->data) / 1000000000),
        .audiences = auth->audiences,
        .audience_count = auth->audience_count,
        .lxm = demand->lxm == NULL ? (struct span){ NULL, 0 } : span_of(demand->lxm),
    };
    char text[JWT_TEXT_SIZE];

    tr_assert(refusal != JWT_OK);
    if (refusal == JWT_ISSUER)
        (void)snprintf(text, sizeof text, "%s",
            demand->session ? "This route needs a session token; sign in."
                            : "This route needs a service token, not a session token.");
    else
        jwt_explain(refusal, &token, &expect, text);
    gate_refuse(request, jwt_refusal_label(refusal), text);
}

static bool has_role(const struct auth_demand *demand, const struct auth_claims *claims)
{
    return demand->role == NULL || span_is(claims->role, demand->role);
}

static void refuse_role(struct http_request *request)
{
    char text[128];

    (void)snprintf(text, sizeof text, "This route needs the role %.64s.", demand_of(request)->role);
    http_respond_error(request, 403, "Forbidden", text);
}

static void let_in(struct http_request *request, const struct auth_answer *answer)
{
    struct caller *caller;
    enum jwt_refusal refusal;

    if (answer->issuer_size == 0) { /* anonymous, and within the rate */
        http_continue(request);
        return;
    }
    caller = caller_from(request, answer);
    if (caller == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    refusal = check_claims(request, &caller->claims);
    if (refusal != JWT_OK) {
        refuse_claims(request, &caller->claims, refusal);
        return;
    }
    if (!has_role(demand_of(request), &caller->claims)) {
        refuse_role(request);
        return;
    }
    http_set_caller(request, caller);
    http_continue(request);
}

static void gate_send_token(struct http_request *request, const unsigned char *hash);

static void on_answer(struct http_request *request, const struct tr_event *event)
{
    const struct auth_answer *answer = event->value;

    if (event->status < 0 || event->size < offsetof(struct auth_answer, texts)) {
        http_respond_shed(request, 503, 1, "auth");
        return;
    }
    switch (answer->verdict) {
    case VERDICT_OK:
        let_in(request, answer);
        break;
    case VERDICT_UNKNOWN:
        gate_send_token(request, (const unsigned char *)answer->texts);
        break;
    case VERDICT_REFUSED:
        gate_refuse(request, answer->label, answer->texts);
        break;
    case VERDICT_LIMITED:
        http_respond_shed(
            request, 429, (uint32_t)(answer->retry_ns / 1000000000 + 1), answer->label);
        break;
    case VERDICT_FAILED:
        http_add_header(request, "Retry-After", SPAN("1"));
        http_respond_error(request, 503, answer->label, answer->texts);
        break;
    }
}

/* ---- the question --------------------------------------------------------------------------- */

static struct span token_of(const struct http_request *request)
{
    struct span value = http_header(request, "Authorization");

    if (value.size < 7 || !span_is_nocase((struct span){ value.at, 7 }, "Bearer "))
        return (struct span){ NULL, 0 };
    return (struct span){ value.at + 7, value.size - 7 };
}

static bool has_two(const struct http_request *request, const char *name)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < http_header_count(request); i++)
        count += span_is_nocase(http_header_at(request, i)->name, name);
    return count > 1;
}

static void fill_address(struct http_request *request, struct auth_verifier_message *message)
{
    message->address_size =
        (unsigned char)rate_limit_address_key(http_peer(request), message->address);
}

static void gate_ask(struct http_request *request, struct auth_verifier_message *message)
{
    int rc = http_ask(request, auth_of(request)->verifier, message, sizeof *message, on_answer);

    if (rc == 0)
        return;
    base_free(message->token);
    http_respond_shed(request, 503, 1, "auth");
}

/* Copy the token into the message. False: the request has been answered. */
static bool add_token(
    struct http_request *request, struct auth_verifier_message *message, struct span token)
{
    struct span trace = http_traceparent(request);

    message->token = base_alloc(token.size + trace.size + 1);
    if (message->token == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return false;
    }
    memcpy(message->token, token.at, token.size);
    message->token_size = token.size;
    memcpy(message->token + token.size, trace.at, trace.size);
    message->token[token.size + trace.size] = '\0';
    message->is_traced = true;
    return true;
}

static void gate_send_token(struct http_request *request, const unsigned char *hash)
{
    struct auth_verifier_message message = { .kind = VERIFIER_VERIFY };
    struct span token = token_of(request);

    tr_assert(token.at != NULL); /* VERDICT_UNKNOWN answers a message with a hash */
    memcpy(message.hash, hash, sizeof message.hash);
    if (add_token(request, &message, token))
        gate_ask(request, &message);
}

/* A service token serves for one change, so a request that is not a read brings a new token: sending it
 * with the first message saves a second one. A wrong guess costs a copy. */
static bool is_likely_new(const struct http_request *request)
{
    return http_method(request) != HTTP_GET && http_method(request) != HTTP_HEAD &&
           !demand_of(request)->session;
}

static void refuse_large(struct http_request *request, size_t size)
{
    char text[64];

    (void)snprintf(
        text, sizeof text, "The token is %zu bytes; the limit is %d.", size, JWT_BYTES_MAX);
    gate_refuse(request, jwt_refusal_label(JWT_TOO_LARGE), text);
}

bool auth_gate(struct http_request *request)
{
    const struct auth_demand *demand = demand_of(request);
    struct span token = token_of(request);
    struct auth_verifier_message message = { .kind = VERIFIER_CHECK };

    if (has_two(request, "Authorization")) {
        gate_refuse(request, "TokenForm",
            "There are two Authorization headers; send one, with Bearer TOKEN.");
        return false;
    }
    if (token.at == NULL && http_header(request, "Authorization").at != NULL) {
        gate_refuse(request, "TokenForm",
            "Authorization has no token; send Bearer, one space and the token.");
        return false;
    }
    if (token.at == NULL && (!demand->anonymous || demand->role != NULL)) {
        gate_refuse(
            request, "TokenMissing", "The token is missing; send Authorization: Bearer TOKEN.");
        return false;
    }
    if (token.size > JWT_BYTES_MAX) {
        refuse_large(request, token.size);
        return false;
    }
    if (token.at == NULL)
        message.kind = VERIFIER_ADDRESS;
    else
        crypto_sha256(token.at, token.size, message.hash);
    if (token.at != NULL && is_likely_new(request) && !add_token(request, &message, token))
        return false;
    fill_address(request, &message);
    gate_ask(request, &message);
    return false; /* on_answer lets the request in */
}

const struct auth_claims *auth_claims_of(const struct http_request *request)
{
    const struct caller *caller = http_caller(request);

    return caller == NULL ? NULL : &caller->claims;
}
