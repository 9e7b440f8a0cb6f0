/* SPDX-License-Identifier: Apache-2.0 */
/* session.h: sessions of people who sign in with an OpenID provider. A client exchanges an ID token of a
 * trusted provider (Google, for example) for a session: a short-lived access token of this server, and
 * a refresh token that serves once and gives the next pair. A refresh token that is used a second time
 * was stolen, so it ends its session. The end of a session takes effect at once.
 *
 * One actor. It fetches the key sets of providers, again when a token names an unknown key (at most
 * once a minute), or reads them from a file. The blocking pool checks signatures. */
#ifndef AUTH_SESSION_H
#define AUTH_SESSION_H

#include "auth/auth.h"

enum {
    AUTH_SESSION_TOKEN_S = 900,       /* the life of an access token */
    AUTH_SESSION_LIFE_S = 30 * 86400, /* the life of an unused refresh token */
    AUTH_PROVIDERS_MAX = 8,
    AUTH_SESSION_ROUTES = 4,
};

struct sessions;

struct session_provider {
    const char *name;      /* the last part of its route: "google" */
    const char *issuer;    /* "https://accounts.google.com" */
    const char *keys_url;  /* of its JWKS; NULL with keys_file */
    const char *keys_file; /* path of its JWKS; NULL with keys_url */
    const char *audience;  /* the client id that the provider gave to this server */
};

struct session_options {
    struct auth *auth;
    struct sql *sql;
    struct http_client *client;
    struct crypto_key *key; /* HS256, the same as auth_options.session_key; borrowed */
    const char *service_did;
    const struct session_provider *providers;
    size_t provider_count;
    const char *const *admins; /* verified e-mail addresses with the role "admin"; ends with NULL;
                                  may be NULL */
    struct tr_rate sign_ins;   /* of one address, beside the rate of all its requests; zero: no
                                  limit */
    tr_sender supervisor;      /* restarts the actor when it fails; borrowed; none: it ends */
};
/* Set the roles in the database by `admins`, then start the actor. A user who is not listed any more is
 * no administrator after a restart. The options' texts must outlive the sessions. Blocks. TR_EINVAL,
 * TR_ENOMEM, or the errors of sql.h. */
int sessions_start(struct tr_system *system, const struct session_options *options,
    struct sessions **ret_sessions);
/* Stop the actor after it answered all requests. Nulls *sessions. Blocks. */
void sessions_stop(struct sessions **sessions);
/* Read the key set files: after the start, and when they have changed. A file that fails leaves its
 * provider the keys it had; `why` gets the sentence of the first failure. A provider is unavailable
 * until its file was read once. Blocks. One caller at a time. */
int sessions_load_keys(struct sessions *sessions, char *why, size_t why_size);

/* POST /v1/auth/{provider} {"idToken" or "id_token", "nonce"?}
 *                        -> {"accessToken", "refreshToken", "expiresIn", "user"}
 * POST /v1/auth/refresh  {"refreshToken"} -> the same
 * POST /v1/auth/logout   {"refreshToken"} -> {}
 * GET  /v1/users/me      with a session -> {"id", "email"?, "role"} */
void sessions_routes(struct sessions *sessions, struct http_route routes[AUTH_SESSION_ROUTES]);

#endif
