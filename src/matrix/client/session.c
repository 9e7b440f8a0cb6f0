/* SPDX-License-Identifier: Apache-2.0 */
/* session.c: the states of a login. Every change of state is a move of the table below. */
#include "matrix/client/session.h"

#include <stdio.h>

#include <troupe/error.h>

#include "base/assert.h"
#include "crypto/digest.h"

const char *mxclient_state_text(enum mxclient_state state)
{
#define TEXT(name, text) [MXCLIENT_##name] = (text),
    static const char *const texts[MXCLIENT_STATE_COUNT] = { MXCLIENT_STATES(TEXT) };

    tr_assert(state < MXCLIENT_STATE_COUNT);
    return texts[state];
}

/* ---- moves ------------------------------------------------------------------------------------ */

enum session_move {
    MOVE_DISCOVER,
    MOVE_FOUND,      /* the address of the homeserver is known */
    MOVE_SUPPORTED,  /* it speaks a version that we speak */
    MOVE_UNSUITABLE, /* it does not, or discovery failed */
    MOVE_LOGIN,
    MOVE_WELCOME, /* the server gave tokens */
    MOVE_DENIED,  /* the login failed */
    MOVE_REFRESH, /* the token was refused or is about to expire, and can be replaced */
    MOVE_REFRESHED,
    MOVE_UNREACHED, /* the refresh brought no token: the next refusal starts another */
    MOVE_SOFT_LOGOUT,
    MOVE_HARD_LOGOUT,
    MOVE_LOGOUT,
    MOVE_LOGGED_OUT,
    MOVES,
};

/* Zero is no move: no state goes back to NEW but from discovery, which is written as NEW + 1. */
#define TO(state) (MXCLIENT_##state + 1)
static const uint8_t session_moves[MXCLIENT_STATE_COUNT][MOVES] = {
    [MXCLIENT_NEW] = { [MOVE_DISCOVER] = TO(DISCOVERING) },
    [MXCLIENT_DISCOVERING] = { [MOVE_FOUND] = TO(CHECKING), [MOVE_UNSUITABLE] = TO(NEW) },
    [MXCLIENT_CHECKING] = { [MOVE_SUPPORTED] = TO(SIGNED_OUT), [MOVE_UNSUITABLE] = TO(NEW) },
    [MXCLIENT_SIGNED_OUT] = { [MOVE_LOGIN] = TO(LOGGING_IN) },
    [MXCLIENT_LOGGING_IN] = { [MOVE_WELCOME] = TO(ACTIVE), [MOVE_DENIED] = TO(SIGNED_OUT) },
    [MXCLIENT_ACTIVE] = { [MOVE_REFRESH] = TO(REFRESHING),
        [MOVE_SOFT_LOGOUT] = TO(SOFT_OUT),
        [MOVE_HARD_LOGOUT] = TO(ENDED),
        [MOVE_LOGOUT] = TO(LOGGING_OUT) },
    [MXCLIENT_REFRESHING] = { [MOVE_REFRESHED] = TO(ACTIVE),
        [MOVE_UNREACHED] = TO(ACTIVE),
        [MOVE_SOFT_LOGOUT] = TO(SOFT_OUT),
        [MOVE_HARD_LOGOUT] = TO(ENDED) },
    [MXCLIENT_SOFT_OUT] = { [MOVE_LOGIN] = TO(LOGGING_IN_AGAIN) },
    [MXCLIENT_LOGGING_IN_AGAIN] = { [MOVE_WELCOME] = TO(ACTIVE), [MOVE_DENIED] = TO(SOFT_OUT) },
    [MXCLIENT_LOGGING_OUT] = { [MOVE_LOGGED_OUT] = TO(ENDED), [MOVE_UNREACHED] = TO(ACTIVE) },
};

static bool session_may(const struct mxclient_session *session, enum session_move move)
{
    tr_assert(session->state < MXCLIENT_STATE_COUNT);
    return session_moves[session->state][move] != 0;
}

static void session_drop_tokens(struct mxclient_session *session)
{
    mx_wipe_buffer(&session->access_token);
    mx_wipe_buffer(&session->refresh_token);
    session->token_expires_ms = 0;
    session->token_refresh_ms = 0;
}

static void session_go(struct mxclient_session *session, enum session_move move)
{
    tr_assert(session_may(session, move));
    session->state = (enum mxclient_state)(session_moves[session->state][move] - 1);
    if (session->state == MXCLIENT_SOFT_OUT || session->state == MXCLIENT_ENDED)
        session_drop_tokens(session);
    tr_assert(session->state != MXCLIENT_ACTIVE || session->access_token.size > 0);
}

/* ---- life ------------------------------------------------------------------------------------- */

void mxclient_session_init(struct mxclient_session *session, const struct mx_random *random,
    const struct mx_pickle_key *key)
{
    *session = (struct mxclient_session){
        .state = MXCLIENT_NEW, .random = random, .key = key, .txn_next = 1
    };
}

void mxclient_session_fini(struct mxclient_session *session)
{
    session_drop_tokens(session);
    buffer_free(&session->homeserver);
    buffer_free(&session->user_id);
    buffer_free(&session->device_id);
    buffer_free(&session->filter_id);
    mx_account_destroy(session->account);
    *session = (struct mxclient_session){ 0 };
}

static int session_set(struct buffer *buffer, struct span text)
{
    buffer_clear(buffer);
    return buffer_span(buffer, text);
}

/* Replace a secret: the former bytes are wiped. Without memory it stays. */
static int session_set_secret(struct buffer *buffer, struct span text)
{
    struct buffer copy = { 0 };

    if (buffer_span(&copy, text) != 0)
        return copy.failed;
    mx_wipe_buffer(buffer);
    *buffer = copy;
    return 0;
}

static int session_open_secret(
    const struct mxclient_session *session, struct span sealed, struct buffer *secret)
{
    return sealed.at == NULL ? 0 : mx_secret_open(sealed, session->key, secret);
}

int mxclient_session_load(
    struct mxclient_session *session, const struct mxstore_session *row, int64_t now_ms)
{
    static const enum mxclient_state states[] = {
        [MXSTORE_LOGGED_IN] = MXCLIENT_ACTIVE,
        [MXSTORE_SOFT_LOGGED_OUT] = MXCLIENT_SOFT_OUT,
        [MXSTORE_LOGGED_OUT] = MXCLIENT_ENDED,
    };
    int rc;

    tr_assert(session->state == MXCLIENT_NEW && session->account == NULL);
    tr_assert(row->login >= 0 && row->login <= MXSTORE_LOGGED_OUT);
    rc = mx_account_unpickle(row->account, session->key, &session->account);
    if (rc == 0)
        rc = session_open_secret(session, row->access_token, &session->access_token);
    if (rc == 0)
        rc = session_open_secret(session, row->refresh_token, &session->refresh_token);
    if (rc != 0)
        return rc;
    session->state = states[row->login];
    session->token_expires_ms = row->token_expires_ms;
    if (row->token_expires_ms != 0 && session->refresh_token.size > 0)
        session->token_refresh_ms = row->token_expires_ms - MXCLIENT_REFRESH_AHEAD_MS;
    if (session->token_refresh_ms < 0)
        session->token_refresh_ms = now_ms;
    session->token_serial = 1;
    session->txn_next = row->txn_next;
    session->fallback_rotated_ms = row->fallback_rotated_ms;
    rc = session_set(&session->homeserver, row->homeserver);
    rc = rc != 0 ? rc : session_set(&session->user_id, row->user_id);
    rc = rc != 0 ? rc : session_set(&session->device_id, row->device_id);
    return rc != 0 ? rc : session_set(&session->filter_id, row->filter_id);
}

static enum mxstore_login session_login_kind(const struct mxclient_session *session)
{
    if (session->state == MXCLIENT_SOFT_OUT || session->state == MXCLIENT_LOGGING_IN_AGAIN)
        return MXSTORE_SOFT_LOGGED_OUT;
    return session->state == MXCLIENT_ENDED ? MXSTORE_LOGGED_OUT : MXSTORE_LOGGED_IN;
}

/* Seal a secret for the row; an empty one stays absent. */
static int session_seal(
    const struct mxclient_session *session, const struct buffer *secret, struct buffer *sealed)
{
    if (secret->size == 0)
        return 0;
    return mx_secret_seal(mxclient_span(secret), session->key, session->random, sealed);
}

int mxclient_session_put(const struct mxclient_session *session, struct sql_unit *unit)
{
    struct buffer access = { 0 }, refresh = { 0 }, account = { 0 };
    int rc;

    tr_assert(session->account != NULL && session->user_id.size > 0);
    tr_assert(session->state >= MXCLIENT_ACTIVE);
    rc = mx_account_pickle(session->account, session->key, session->random, &account);
    rc = rc != 0 ? rc : session_seal(session, &session->access_token, &access);
    rc = rc != 0 ? rc : session_seal(session, &session->refresh_token, &refresh);
    if (rc == 0)
        mxstore_put(unit, MXSTORE_IS_session,
            &(struct mxstore_session){
                .user_id = mxclient_span(&session->user_id),
                .device_id = mxclient_span(&session->device_id),
                .homeserver = mxclient_span(&session->homeserver),
                .login = session_login_kind(session),
                .access_token = mxclient_span(&access),
                .refresh_token = mxclient_span(&refresh),
                .token_expires_ms = session->token_expires_ms,
                .account = mxclient_span(&account),
                .filter_id = mxclient_span(&session->filter_id),
                .txn_next = session->txn_next,
                .fallback_rotated_ms = session->fallback_rotated_ms,
            });
    buffer_free(&access);
    buffer_free(&refresh);
    buffer_free(&account);
    return rc;
}

/* ---- discovery -------------------------------------------------------------------------------- */

/* Take the base address of a homeserver: a URL of http or https without query and fragment. */
static int session_set_homeserver(struct mxclient_session *session, struct span url)
{
    bool is_web = span_starts(url, "https://") || span_starts(url, "http://");

    if (!is_web || url.size > MXCLIENT_URL_BYTES_MAX || url.at[url.size - 1] == ':')
        return TR_EINVAL;
    for (size_t i = 0; i < url.size; i++)
        if ((unsigned char)url.at[i] <= 0x20 || strchr("?#@\\\"<>\x7f", url.at[i]) != NULL)
            return TR_EINVAL;
    while (url.size > 0 && url.at[url.size - 1] == '/')
        url.size--;
    if (url.size < sizeof "http://")
        return TR_EINVAL;
    return session_set(&session->homeserver, url);
}

int mxclient_session_discover(struct mxclient_session *session, struct span url)
{
    int rc;

    if (!session_may(session, MOVE_DISCOVER))
        return TR_EBUSY;
    rc = session_set_homeserver(session, url);
    if (rc == 0)
        session_go(session, MOVE_DISCOVER);
    return rc;
}

/* A server without .well-known is used at the address that the user gave. One with a broken
 * .well-known is not: the specification says to ask the user. A server reached by https must not
 * lead to one without. */
static int session_take_well_known(struct mxclient_session *session,
    const struct mxclient_outcome *outcome, const struct json *body, int64_t now_ms)
{
    bool was_https = span_starts(mxclient_span(&session->homeserver), "https://");
    struct span url;

    (void)now_ms;
    if (outcome->verdict == MXCLIENT_DONE) {
        if (!json_string(json_get(json_get(body, "m.homeserver"), "base_url"), &url) ||
            (was_https && !span_starts(url, "https://")))
            return TR_EPROTO;
        if (session_set_homeserver(session, url) != 0)
            return TR_EPROTO;
    } else if (outcome->status != 404)
        return outcome->error != 0 ? outcome->error : TR_EPROTO;
    session_go(session, MOVE_FOUND);
    return 0;
}

/* All paths that we use begin with v3, which version 1.1 brought. */
static int session_take_versions(struct mxclient_session *session,
    const struct mxclient_outcome *outcome, const struct json *body, int64_t now_ms)
{
    struct span version;

    (void)now_ms;
    if (outcome->verdict != MXCLIENT_DONE)
        return outcome->error != 0 ? outcome->error : TR_EPROTO;
    for (struct json_iter it = json_iterate(json_get(body, "versions")); json_next(&it);)
        if (json_string(it.value, &version) && span_starts(version, "v1.")) {
            session_go(session, MOVE_SUPPORTED);
            return 0;
        }
    return TR_EUNSUPPORTED;
}

/* ---- login ------------------------------------------------------------------------------------ */

static int session_create_device(struct mxclient_session *session)
{
    uint8_t bytes[10];
    int rc = 0;

    if (session->account == NULL)
        rc = mx_account_create(session->random, &session->account);
    if (rc != 0 || session->device_id.size > 0)
        return rc;
    session->random->fill(session->random->data, bytes, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        (void)buffer_append(&session->device_id, &"ABCDEFGHIJKLMNOPQRSTUVWXYZ"[bytes[i] % 26], 1);
    return session->device_id.failed;
}

static void session_put_login(
    const struct mxclient_session *session, const struct mxclient_login *login, struct buffer *body)
{
    struct json_writer writer = json_writer(body);
    bool by_token = login->token.at != NULL;

    json_put_object(&writer, NULL);
    json_put_text(&writer, "type", by_token ? "m.login.token" : "m.login.password");
    if (by_token)
        json_put_string(&writer, "token", login->token);
    else {
        json_put_object(&writer, "identifier");
        json_put_text(&writer, "type", "m.id.user");
        json_put_string(&writer, "user", login->user);
        json_put_end(&writer);
        json_put_string(&writer, "password", login->password);
    }
    json_put_string(&writer, "device_id", mxclient_span(&session->device_id));
    if (login->device_name.at != NULL)
        json_put_string(&writer, "initial_device_display_name", login->device_name);
    json_put_bool(&writer, "refresh_token", true);
    json_put_end(&writer);
    (void)json_writer_end(&writer); /* a failure stays in the body's buffer */
}

int mxclient_session_login(struct mxclient_session *session, const struct mxclient_login *login,
    struct mxclient_request *request)
{
    int rc;

    if (!session_may(session, MOVE_LOGIN))
        return TR_EBUSY;
    if (login->token.at == NULL && (login->user.size == 0 || login->password.at == NULL))
        return TR_EINVAL;
    rc = session_create_device(session);
    if (rc != 0)
        return rc;
    mxclient_request_init(request, MXCLIENT_LOGIN, NULL);
    session_put_login(session, login, &request->body);
    rc = mxclient_request_error(request);
    if (rc != 0)
        mxclient_request_fini(request);
    else
        session_go(session, MOVE_LOGIN);
    return rc;
}

static bool session_read_token(const struct json *value, struct span *ret_token)
{
    struct span token;

    if (!json_string(value, &token) || token.size == 0 || token.size > MXCLIENT_TOKEN_BYTES_MAX)
        return false;
    for (size_t i = 0; i < token.size; i++) /* it goes into a header line */
        if (token.at[i] <= 0x20 || token.at[i] >= 0x7f)
            return false;
    *ret_token = token;
    return true;
}

/* Return how long before its end a token of this lifetime is replaced. A token that ends within the
 * gap is replaced after it: the server would be asked all the time. */
static int64_t session_ahead_ms(int64_t lifetime)
{
    int64_t ahead =
        lifetime / 2 < MXCLIENT_REFRESH_AHEAD_MS ? lifetime / 2 : MXCLIENT_REFRESH_AHEAD_MS;

    return lifetime - ahead < MXCLIENT_REFRESH_GAP_MS ? lifetime - MXCLIENT_REFRESH_GAP_MS : ahead;
}

/* Take the tokens of a login or refresh. A refresh without a new refresh token keeps the former. */
static int session_take_tokens(
    struct mxclient_session *session, const struct json *body, int64_t now_ms)
{
    struct span access, refresh = { NULL, 0 };
    int64_t lifetime = 0;
    int rc = 0;

    if (!session_read_token(json_get(body, "access_token"), &access))
        return TR_EPROTO;
    if (json_get(body, "refresh_token") != NULL &&
        !session_read_token(json_get(body, "refresh_token"), &refresh))
        return TR_EPROTO;
    if (!json_int(json_get(body, "expires_in_ms"), &lifetime) || lifetime < 0 ||
        lifetime > INT64_MAX - now_ms - MXCLIENT_REFRESH_GAP_MS)
        lifetime = 0;
    if (refresh.at != NULL)
        rc = session_set_secret(&session->refresh_token, refresh);
    rc = rc != 0 ? rc : session_set_secret(&session->access_token, access);
    if (rc != 0)
        return rc;
    session->token_serial++;
    session->token_expires_ms = lifetime == 0 ? 0 : now_ms + lifetime;
    session->token_refresh_ms = 0;
    if (lifetime != 0 && session->refresh_token.size > 0)
        session->token_refresh_ms = session->token_expires_ms - session_ahead_ms(lifetime);
    return 0;
}

static int session_take_login(struct mxclient_session *session,
    const struct mxclient_outcome *outcome, const struct json *body, int64_t now_ms)
{
    struct span user, device;
    int rc;

    if (outcome->verdict != MXCLIENT_DONE && outcome->status >= 400 && outcome->status < 500)
        return TR_EACCES;
    if (outcome->verdict != MXCLIENT_DONE)
        return outcome->error != 0 ? outcome->error : TR_EIO;
    if (!mxclient_read_id(json_get(body, "user_id"), &user) || user.at[0] != '@' ||
        !mxclient_read_id(json_get(body, "device_id"), &device) ||
        !span_equal(device, mxclient_span(&session->device_id)))
        return TR_EPROTO;
    if (session->user_id.size > 0 && !span_equal(user, mxclient_span(&session->user_id)))
        return TR_EPROTO;
    tr_assert(session->refresh_token.size == 0); /* a soft logout dropped it */
    rc = session_take_tokens(session, body, now_ms);
    rc = rc != 0 ? rc : session_set(&session->user_id, user);
    if (rc == 0)
        session_go(session, MOVE_WELCOME);
    return rc;
}

/* ---- refresh and logout ----------------------------------------------------------------------- */

int64_t mxclient_session_due_ms(const struct mxclient_session *session)
{
    return session->state == MXCLIENT_ACTIVE && session->token_refresh_ms != 0
               ? session->token_refresh_ms
               : INT64_MAX;
}

void mxclient_session_tick(struct mxclient_session *session, int64_t now_ms)
{
    if (now_ms < mxclient_session_due_ms(session))
        return;
    session->is_refusal_soft = false;
    session->is_refresh_early = true;
    session_go(session, MOVE_REFRESH);
}

int mxclient_session_logout(struct mxclient_session *session)
{
    if (!session_may(session, MOVE_LOGOUT))
        return TR_EBUSY;
    session_go(session, MOVE_LOGOUT);
    return 0;
}

static int session_take_refresh(struct mxclient_session *session,
    const struct mxclient_outcome *outcome, const struct json *body, int64_t now_ms)
{
    bool is_refused =
        outcome->verdict == MXCLIENT_TOKEN || outcome->status == 401 || outcome->status == 403;
    int rc;

    /* The token still counts, and only its own refusal says whether the device and its keys stay. */
    if (is_refused && session->is_refresh_early && !outcome->is_soft_logout) {
        session->token_refresh_ms = 0;
        session_go(session, MOVE_UNREACHED);
        return 0;
    }
    if (is_refused) {
        session_go(session, outcome->is_soft_logout || session->is_refusal_soft ? MOVE_SOFT_LOGOUT
                                                                                : MOVE_HARD_LOGOUT);
        return 0;
    }
    rc = outcome->verdict == MXCLIENT_DONE ? session_take_tokens(session, body, now_ms)
         : outcome->error != 0             ? outcome->error
                                           : TR_EPROTO;
    /* Wait for a refusal before another attempt, instead of asking at each tick. */
    if (rc != 0)
        session->token_refresh_ms = 0;
    session_go(session, rc == 0 ? MOVE_REFRESHED : MOVE_UNREACHED);
    return rc;
}

/* A refused token means that the device is logged out already. */
static int session_take_logout(struct mxclient_session *session,
    const struct mxclient_outcome *outcome, const struct json *body, int64_t now_ms)
{
    bool is_out = outcome->verdict == MXCLIENT_DONE || outcome->verdict == MXCLIENT_TOKEN;

    (void)body;
    (void)now_ms;
    session_go(session, is_out ? MOVE_LOGGED_OUT : MOVE_UNREACHED);
    return is_out ? 0 : outcome->error != 0 ? outcome->error : TR_EACCES;
}

enum mxclient_repeat mxclient_session_refused(struct mxclient_session *session,
    const struct mxclient_request *request, const struct mxclient_outcome *outcome)
{
    tr_assert(outcome->verdict == MXCLIENT_TOKEN);
    tr_assert(request->token <= session->token_serial);
    if (session->state == MXCLIENT_ENDED || session->state == MXCLIENT_LOGGING_OUT)
        return MXCLIENT_REPEAT_NEVER;
    if (session->state != MXCLIENT_ACTIVE)
        return MXCLIENT_REPEAT_WAIT;
    if (request->token != session->token_serial)
        return MXCLIENT_REPEAT_NOW;
    session->is_refusal_soft = outcome->is_soft_logout;
    session->is_refresh_early = false;
    if (session->refresh_token.size > 0)
        session_go(session, MOVE_REFRESH);
    else
        session_go(session, outcome->is_soft_logout ? MOVE_SOFT_LOGOUT : MOVE_HARD_LOGOUT);
    return session->state == MXCLIENT_ENDED ? MXCLIENT_REPEAT_NEVER : MXCLIENT_REPEAT_WAIT;
}

/* ---- requests and answers --------------------------------------------------------------------- */

/* The call that a state makes, and the function that takes its answer. A failure of the function
 * makes the move `failed`, unless the function makes its moves itself. */
struct session_step {
    enum mxclient_call call;
    int (*take)(struct mxclient_session *session, const struct mxclient_outcome *outcome,
        const struct json *body, int64_t now_ms); /* NULL: the state makes no call */
    enum session_move failed;                     /* MOVES: none */
};
static const struct session_step session_steps[MXCLIENT_STATE_COUNT] = {
    [MXCLIENT_DISCOVERING] = { MXCLIENT_WELL_KNOWN, session_take_well_known, MOVE_UNSUITABLE },
    [MXCLIENT_CHECKING] = { MXCLIENT_VERSIONS, session_take_versions, MOVE_UNSUITABLE },
    [MXCLIENT_LOGGING_IN] = { MXCLIENT_LOGIN, session_take_login, MOVE_DENIED },
    [MXCLIENT_LOGGING_IN_AGAIN] = { MXCLIENT_LOGIN, session_take_login, MOVE_DENIED },
    [MXCLIENT_REFRESHING] = { MXCLIENT_REFRESH, session_take_refresh, MOVES },
    [MXCLIENT_LOGGING_OUT] = { MXCLIENT_LOGOUT, session_take_logout, MOVES },
};

bool mxclient_session_next(const struct mxclient_session *session, struct mxclient_request *request)
{
    const struct session_step *step = &session_steps[session->state];
    struct json_writer writer;

    /* The caller has the request of a login: the password is not kept here. */
    if (step->take == NULL || step->call == MXCLIENT_LOGIN)
        return false;
    mxclient_request_init(request, step->call, NULL);
    if (step->call == MXCLIENT_REFRESH || step->call == MXCLIENT_LOGOUT) {
        writer = json_writer(&request->body);
        json_put_object(&writer, NULL);
        if (step->call == MXCLIENT_REFRESH)
            json_put_string(&writer, "refresh_token", mxclient_span(&session->refresh_token));
        json_put_end(&writer);
    }
    /* Requests wait for a refresh. While the token counts they do not wait for its repetitions. */
    if (step->call == MXCLIENT_REFRESH && session->is_refresh_early)
        request->attempts = MXCLIENT_ATTEMPTS_MAX - 1;
    request->token = session->token_serial;
    return true;
}

int mxclient_session_answered(struct mxclient_session *session,
    const struct mxclient_request *request, const struct mxclient_outcome *outcome,
    const struct json *body, int64_t now_ms)
{
    const struct session_step *step = &session_steps[session->state];
    int rc;

    tr_assert(step->take != NULL && step->call == request->call);
    tr_assert(outcome->verdict != MXCLIENT_LATER);
    rc = step->take(session, outcome, body, now_ms);
    if (rc != 0 && step->failed == MOVE_DENIED)
        session_drop_tokens(session);
    if (rc != 0 && step->failed != MOVES)
        session_go(session, step->failed);
    return rc;
}

void mxclient_session_stamp(
    const struct mxclient_session *session, struct mxclient_request *request)
{
    tr_assert(session->state == MXCLIENT_ACTIVE);
    request->token = session->token_serial;
}

struct span mxclient_session_txn(struct mxclient_session *session, char text[MXCLIENT_TXN_BYTES])
{
    int size = snprintf(text, MXCLIENT_TXN_BYTES, "m%lld", (long long)session->txn_next);

    tr_assert(session->txn_next > 0 && size > 0 && size < MXCLIENT_TXN_BYTES);
    session->txn_next++;
    return (struct span){ text, (size_t)size };
}
