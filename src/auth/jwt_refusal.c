/* SPDX-License-Identifier: Apache-2.0 */
/* jwt_refusal.c: why a token is refused, as a label for programs and a sentence for people. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "auth/jwt.h"
#include "base/assert.h"

static const char *const labels[JWT_REFUSAL_COUNT] = {
#define LABEL(name, label, text) label,
    JWT_REFUSALS(LABEL)
#undef LABEL
};
static const char *const texts[JWT_REFUSAL_COUNT] = {
#define TEXT(name, label, text) text,
    JWT_REFUSALS(TEXT)
#undef TEXT
};

const char *jwt_refusal_label(enum jwt_refusal refusal)
{
    tr_assert(refusal < JWT_REFUSAL_COUNT);
    return labels[refusal];
}

const char *jwt_refusal_text(enum jwt_refusal refusal)
{
    tr_assert(refusal < JWT_REFUSAL_COUNT);
    return texts[refusal];
}

/* ---- sentences with values ------------------------------------------------------------------ */

/* "09:08:17Z" for a time within half a day of now, "2026-11-16T09:08:17Z" for others. */
static void format_time(int64_t time_s, int64_t now_s, char text[32])
{
    enum { HALF_DAY_S = 43200 };
    bool is_near = time_s > now_s - HALF_DAY_S && time_s < now_s + HALF_DAY_S;
    time_t seconds = (time_t)time_s;
    struct tm tm;

    tr_assert(time_s >= 0);
    gmtime_r(&seconds, &tm);
    if (strftime(text, 32, is_near ? "%H:%M:%SZ" : "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        text[0] = '\0';
}

/* A sentence quotes a value of the token only if it is short and visible ASCII. */
static bool is_quotable(struct span value)
{
    return jwt_is_graphic(value, JWT_QUOTE_CHARS_MAX);
}

static void explain_times(enum jwt_refusal refusal, const struct jwt_claims *claims,
    const struct jwt_expect *expect, char text[JWT_TEXT_SIZE])
{
    const int64_t now_s = expect->now_s;
    int64_t ahead_s = (claims->iat_s > claims->nbf_s ? claims->iat_s : claims->nbf_s) - now_s;
    int64_t from_s = claims->iat_s >= 0 && claims->iat_s < now_s ? claims->iat_s : now_s;
    char when[32];

    if (refusal == JWT_EXPIRED) {
        format_time(claims->exp_s, now_s, when);
        (void)snprintf(text, JWT_TEXT_SIZE, "The token expired at %s; make a new one.", when);
    } else if (refusal == JWT_EXPIRY_FAR) {
        (void)snprintf(text, JWT_TEXT_SIZE, "The token lives %lld s; the most is %lld s.",
            (long long)(claims->exp_s - from_s), (long long)jwt_lifetime_s(expect));
    } else {
        (void)snprintf(text, JWT_TEXT_SIZE,
            "%s is %lld s in the future; at most %lld s are allowed. Set the clock.",
            claims->iat_s >= claims->nbf_s ? "iat" : "nbf", (long long)ahead_s,
            (long long)jwt_skew_s(expect));
    }
}

static void explain_audience(
    const struct jwt_claims *claims, const struct jwt_expect *expect, char text[JWT_TEXT_SIZE])
{
    struct span wanted = expect->audiences[expect->audience_count - 1];

    if (claims->aud_list == NULL && is_quotable(claims->aud) && is_quotable(wanted))
        (void)snprintf(text, JWT_TEXT_SIZE, "aud is %.*s; this service is %.*s.",
            (int)claims->aud.size, claims->aud.at, (int)wanted.size, wanted.at);
}

static void explain_method(enum jwt_refusal refusal, const struct jwt_claims *claims,
    const struct jwt_expect *expect, char text[JWT_TEXT_SIZE])
{
    struct span wanted = expect->lxm;

    if (!is_quotable(wanted))
        return;
    if (refusal == JWT_METHOD_MISSING)
        (void)snprintf(
            text, JWT_TEXT_SIZE, "lxm is missing; it must be %.*s.", (int)wanted.size, wanted.at);
    else if (is_quotable(claims->lxm))
        (void)snprintf(text, JWT_TEXT_SIZE, "lxm is %.*s; it must be %.*s.", (int)claims->lxm.size,
            claims->lxm.at, (int)wanted.size, wanted.at);
}

void jwt_explain(enum jwt_refusal refusal, const struct jwt_claims *claims,
    const struct jwt_expect *expect, char text[JWT_TEXT_SIZE])
{
    tr_assert(refusal != JWT_OK);
    (void)snprintf(text, JWT_TEXT_SIZE, "%s", jwt_refusal_text(refusal));
    if (refusal == JWT_CLAIM_TYPE && claims->wrong_claim != NULL &&
        strcmp(claims->wrong_claim, "jti") == 0)
        (void)snprintf(
            text, JWT_TEXT_SIZE, "jti must be 1 to %d visible ASCII characters.", JWT_ID_CHARS_MAX);
    else if (refusal == JWT_CLAIM_TYPE && claims->wrong_claim != NULL)
        (void)snprintf(text, JWT_TEXT_SIZE, "%s must be text of 1 to %d characters.",
            claims->wrong_claim, JWT_NAME_CHARS_MAX);
    else if (refusal == JWT_TIME_TYPE && claims->wrong_claim != NULL)
        (void)snprintf(text, JWT_TEXT_SIZE, "%s must be a whole number of seconds since 1970.",
            claims->wrong_claim);
    else if (expect == NULL)
        return;
    else if (refusal == JWT_EXPIRED || refusal == JWT_EXPIRY_FAR || refusal == JWT_ISSUED_FUTURE)
        explain_times(refusal, claims, expect, text);
    else if (refusal == JWT_AUDIENCE && expect->audience_count > 0)
        explain_audience(claims, expect, text);
    else if (refusal == JWT_METHOD || refusal == JWT_METHOD_MISSING)
        explain_method(refusal, claims, expect, text);
}
