/* SPDX-License-Identifier: Apache-2.0 */
/* session.h: people who sign in elsewhere. An ID token of a trusted OpenID provider (Google, say)
 * is exchanged for a session: a short-lived access token of our own, and a refresh token that is
 * good for one use and gives the next pair. A refresh token that comes again, however late, was
 * stolen: its session ends. Revoking is immediate.
 *
 * One actor. Providers' key sets are fetched, kept and refreshed when a token names a key they do
 * not have (at most once a minute), or come from a file; signatures are checked on the blocking
 * pool. */
#ifndef AUTH_SESSION_H
#define AUTH_SESSION_H

#include "auth/auth.h"

enum {
    AUTH_SESSION_TOKEN_S = 900,       /* an access token */
    AUTH_SESSION_LIFE_S = 30 * 86400, /* a refresh token that is not used */
    AUTH_PROVIDERS_MAX = 8,
    AUTH_SESSION_ROUTES = 4,
};

struct sessions;

struct session_provider {
    const char *name;      /* the last part of its route: "google" */
    const char *issuer;    /* "https://accounts.google.com" */
    const char *keys_url;  /* its JWKS; NULL if that is a file */
    const char *keys_file; /* then its path: nothing is fetched */
    const char *audience;  /* our client id there */
};

struct session_options {
    struct auth *auth;
    struct sql *sql;
    struct http_client *client;
    struct crypto_key *key; /* HS256, the same as auth_options.session_key; borrowed */
    const char *service_did;
    const struct session_provider *providers;
    size_t provider_count;
    const char *const *admins; /* verified e-mail addresses that get the role "admin"; ends with
                                  NULL; may be NULL */
    struct tr_rate sign_ins;   /* ID tokens of one address, beside the rate of all its requests;
                                  zero: no limit of their own */
};
/* Texts are borrowed and must outlive it. Blocks: roles in the database are made those of `admins`
 * first, so somebody who is not listed any more is not an administrator after a restart. Also the
 * errors of sql.h. */
int sessions_start(struct tr_system *system, const struct session_options *options,
    struct sessions **ret_sessions);
void sessions_stop(struct sessions **sessions);
/* Read the key sets that are files: after the start, and when they have changed. All are read; one
 * that cannot be used leaves its provider with the keys it had, and the first such says why. Until
 * its file was read a provider is unavailable. Blocks. One caller at a time. */
int sessions_load_keys(struct sessions *sessions, char *why, size_t why_size);

/* POST /v1/auth/{provider} {"idToken" or "id_token", "nonce"?}
 *                        -> {"accessToken", "refreshToken", "expiresIn", "user"}
 * POST /v1/auth/refresh  {"refreshToken"} -> the same
 * POST /v1/auth/logout   {"refreshToken"} -> {}
 * GET  /v1/users/me      with a session -> {"id", "email"?, "role"} */
void sessions_routes(struct sessions *sessions, struct http_route routes[AUTH_SESSION_ROUTES]);

#endif
