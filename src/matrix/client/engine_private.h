/* SPDX-License-Identifier: Apache-2.0 */
/* engine_private.h: the inside of the engine, for its files alone. */
#ifndef MATRIX_CLIENT_ENGINE_PRIVATE_H
#define MATRIX_CLIENT_ENGINE_PRIVATE_H

#include "matrix/client/engine.h"

/* A loop is one activity with at most one request at a time. */
enum engine_loop_kind {
    LOOP_SESSION, /* discovery, login, refresh, logout */
    LOOP_FILTER,
    LOOP_SYNC,
    LOOP_UPLOAD, /* our keys */
    LOOP_QUERY,  /* devices of others */
    LOOP_UNWEDGE,
    LOOP_KEY_REQUEST, /* to and from our own verified devices */
    LOOP_OUTBOX,      /* members, claims and shares of the next event's room; then the event */
    LOOP_GAP,         /* timelines */
    LOOP_ROOM,        /* create, invite, join, leave */
    LOOP_VERIFY,      /* messages and time limits of verifications */
    LOOP_MEDIA,       /* uploads and downloads */
    LOOPS,
};

/*   IDLE ──start──▶ READY ──ask──▶ ASKED ──event──▶ ANSWERED ──take──▶ IDLE
 *                     ▲                               │
 *                     └────────── PAUSED ◀────────────┘ repeat later */
enum engine_loop_state { LOOP_IDLE, LOOP_READY, LOOP_ASKED, LOOP_ANSWERED, LOOP_PAUSED };

struct engine_loop {
    enum engine_loop_state state;
    bool is_wanted;                  /* IDLE: something may be due */
    struct mxclient_request request; /* not while IDLE */
    struct mxengine_answer answer;   /* ANSWERED */
    size_t answer_bytes;             /* of its body */
    uint32_t serial;                 /* of the last ask: answers to others are old */
    uint32_t failures;               /* in a row, of answers that made no sense */
    uint64_t asked_ns;
    uint64_t due_ns; /* IDLE: start not before; PAUSED: ask again then */
};

/* The part of the client that is in memory:
 *   EMPTY ──the rows are read──▶ LOADED ──/sync──▶ SYNCED; a fall leads from each to EMPTY */
enum engine_phase {
    ENGINE_EMPTY,
    ENGINE_LOADED, /* the next /sync must not wait on the server */
    ENGINE_SYNCED,
};

/* The unit under way. */
enum engine_unit { UNIT_NONE, UNIT_LOAD, UNIT_STORE, UNIT_HELD, UNIT_OUTBOX, UNIT_JOB };

struct engine_queue {
    struct mxengine_job *first;
    struct mxengine_job **end;
    uint32_t count;
};

/* The purpose of the request of LOOP_OUTBOX. */
enum engine_sending_kind { SENDING_EVENT, SENDING_MEMBERS, SENDING_CLAIM, SENDING_SHARE };
struct engine_sending {
    enum engine_sending_kind kind;
    struct buffer room_id;
    struct buffer txn_id;
    uint32_t members; /* member_changes of the room when its members were asked for */
    int64_t attempts; /* of the event, as its row counts them */
    bool is_first;    /* of the event: the server cannot have had it before */
};

enum {
    ENGINE_RELEASE_ROOMS = 16,
    ENGINE_OUTBOX_HEADS = 64,
    ENGINE_PARKED_MAX = 64,
    ENGINE_TRIES_MAX = 10, /* of an event that the server answers with 5xx; then it is given up */
    ENGINE_PAUSE_MS = 60 * 1000,
    ENGINE_LOOK_MS = 60 * 60 * 1000, /* the longest timer for a token: the clock may have jumped */
    ENGINE_TOO_BIG_MS = 60 * 60 * 1000,
    ENGINE_CONFIG_MS = 60 * 60 * 1000, /* that an answer about limits counts */
    ENGINE_FORGET_BYTES = 1 << 20,
    ENGINE_STALL_MS = 5 * 60 * 1000, /* our own events come back sooner */
    ENGINE_PRUNE_MS = 24 * 60 * 60 * 1000,
    ENGINE_SENT_LIFE_MS = 7 * 24 * 60 * 60 * 1000
};

/* A request of LOOP_OUTBOX that the server could not answer. Its room waits, the others do not. */
struct engine_parked {
    struct engine_sending sending; /* room_id is empty: the place is free */
    struct mxclient_request request;
    uint64_t due_ns;
};

/* The held events that are tried again. */
struct engine_release {
    bool is_wanted;
    uint32_t count;
    struct mxclient_room *rooms[ENGINE_RELEASE_ROOMS];
};

struct engine {
    const struct mxengine_options *options;
    const struct tr_env *env;
    struct mx_random random;
    struct sql_client sql;
    struct mxclient client;
    enum engine_phase phase;
    bool is_filter_refused;
    bool is_upload_planned; /* the unit of new keys is stored, or there are none */
    uint64_t load_due_ns;
    uint32_t falls;   /* loads without a stored unit in between */
    int64_t clock_ms; /* wall clock at the load, minus the monotonic clock */
    uint64_t now_ns;
    uint64_t timer_id;
    uint64_t timer_ns; /* 0: none is set */
    enum engine_unit unit;
    struct mxengine_job *unit_job; /* answered when the unit ends */
    bool is_unit_news;             /* jobs may wait for what is in it */
    struct engine_loop loops[LOOPS];
    /* the outbox */
    bool has_unsent;
    struct engine_sending sending;
    struct engine_parked parked[ENGINE_PARKED_MAX];
    bool is_halted;       /* the policy holds an event back */
    int64_t pruned_ms;    /* when sent rows were dropped last; 0: not in this life */
    uint64_t moved_ns;    /* when the token of /sync moved last */
    uint64_t unechoed_ns; /* an event was sent then, and the token has not moved since; or 0 */
    struct engine_release release;
    struct span forgotten; /* text of the answer to /sync that is read and not given back yet */
    /* jobs */
    struct engine_queue jobs;    /* not started */
    struct engine_queue rooms;   /* for LOOP_ROOM */
    struct engine_queue media;   /* for LOOP_MEDIA */
    struct engine_queue readers; /* jobs that wait for news */
    struct mxengine_job *login;
    struct mxengine_job *logout;
    struct mxengine_job *room_job;  /* LOOP_ROOM works on it */
    struct mxengine_job *media_job; /* LOOP_MEDIA works on it, perhaps with several requests */
    uint64_t upload_max;            /* the largest file that the server takes, as it says */
    uint64_t upload_asked_ns;       /* when it said so; 0: it did not */
    /* the last steps of verifications: a ring by their numbers */
    int64_t news_seq;
    struct mxclient_verify_news news[MXENGINE_NEWS_MAX];
    struct buffer user; /* to log in again after a soft logout */
    struct buffer password;
    struct mxengine_status status;
};

/* ---- engine.c --------------------------------------------------------------------------------- */

static inline int64_t engine_now_ms(const struct engine *engine)
{
    return engine->clock_ms + (int64_t)(engine->now_ns / 1000000);
}
/* The clock by which tokens end: the later one. The engine's own stands still in suspend, and the
 * machine's may be set back. */
static inline int64_t engine_token_ms(const struct engine *engine)
{
    int64_t ahead_ms = engine->client.wall_ahead_ms;

    return engine_now_ms(engine) + (ahead_ms > 0 ? ahead_ms : 0);
}
static inline uint64_t engine_in_ns(const struct engine *engine, uint64_t delay_ms)
{
    return engine->now_ns + delay_ms * 1000000;
}
static inline int64_t engine_last_seq(const struct engine *engine)
{
    return engine->client.seq_next > 0 ? engine->client.seq_next - 1 : 0;
}
/* Store a unit, which this takes; an empty one counts as stored. */
void engine_store(struct engine *engine, struct tr_context *ctx, struct sql_unit *unit);
/* Read a unit, which this takes. */
void engine_read(
    struct engine *engine, struct tr_context *ctx, enum engine_unit purpose, struct sql_unit *unit);
/* Drop all that is in memory after `rc`; load it again after a pause. */
void engine_fall(struct engine *engine, int rc);
/* Return whether the login has ended: for good, or until a user logs in again. */
bool engine_is_over(const struct engine *engine);
/* Drop the request and the answer of a loop, which is IDLE then. */
void engine_drop_loop(struct engine *engine, enum engine_loop_kind kind);
/* Return the tag of a loop's last ask. */
uint32_t engine_tag(const struct engine *engine, enum engine_loop_kind kind);
/* Say that a loop may start now. A request that waits for its next try keeps its pause. */
void engine_want_now(struct engine *engine, enum engine_loop_kind kind);
/* Say that anything may have become due. */
void engine_want_all(struct engine *engine);
/* Say that a key request or an answer to one may be due. */
void engine_want_key_request(struct engine *engine);
/* Put jobs that wait for news back into the queue. */
void engine_wake_readers(struct engine *engine);

/* ---- engine_loops.c --------------------------------------------------------------------------- */

/* Start a loop that is idle. It adds steps to the unit, and may leave a request: READY. A request that
 * cannot be written concerns its loop alone, which tries again later; the unit has what changed. Fails
 * with TR_ENOMEM alone. */
int engine_loop_start(struct engine *engine, enum engine_loop_kind kind, struct sql_unit *unit);
/* Take an outcome, MXCLIENT_DONE or MXCLIENT_REFUSED; of the session's loop also MXCLIENT_TOKEN. The
 * loop is IDLE then. */
int engine_loop_take(struct engine *engine, enum engine_loop_kind kind,
    const struct mxclient_outcome *outcome, const struct json *body, struct sql_unit *unit);

/* ---- engine_outbox.c -------------------------------------------------------------------------- */

/* Choose what to do for the oldest unsent events, rows of mxstore_get_unsent. */
int engine_outbox_choose(
    struct engine *engine, const struct sql_unit *unsent, struct sql_unit *unit);
int engine_outbox_take(struct engine *engine, const struct mxclient_outcome *outcome,
    const struct json *body, struct sql_unit *unit);
/* Take an answer that says nothing about the request but that the server failed: park the request, so
 * that other rooms go on, or give the event up after ENGINE_TRIES_MAX. False if the whole loop has to
 * wait: the server answers nobody, or asks for a pause. */
bool engine_outbox_park(
    struct engine *engine, const struct mxclient_outcome *outcome, struct sql_unit *unit);
/* Return when a parked request is due; UINT64_MAX: none is parked. */
uint64_t engine_outbox_due_ns(const struct engine *engine);
/* Forget the request that sends an event, if there is one: its row changes. */
void engine_outbox_forget(struct engine *engine, struct span txn_id);
void engine_outbox_fini(struct engine *engine);

/* ---- engine_jobs.c ---------------------------------------------------------------------------- */

/* Return an argument; an empty one is absent. */
static inline struct span engine_arg(const struct mxengine_job *job, enum mxengine_arg arg)
{
    const struct buffer *text = &job->args[arg];

    return text->size == 0 ? (struct span){ NULL, 0 } : mxclient_span(text);
}
void engine_queue_add(struct engine_queue *queue, struct mxengine_job *job);
struct mxengine_job *engine_queue_take(struct engine_queue *queue);
/* Answer a job and drop the engine's hold. */
void engine_job_answer(struct mxengine_job *job, int status);
/* Answer *job, if there is one, and null it. */
void engine_job_end(struct mxengine_job **job, int status);
void engine_jobs_end(struct engine_queue *queue, int status);
/* Answer a job that needs a login with TR_EACCES and what became of it. */
void engine_job_refuse(struct engine *engine, struct mxengine_job *job);
/* Let a job wait for news. After the end of the login there is none: the job ends, with the reason. */
void engine_job_wait(struct engine *engine, struct mxengine_job *job);
/* Start the first job of the queue. */
void engine_job_start(struct engine *engine, struct tr_context *ctx);
/* Take the rows of a job that reads. */
void engine_job_rows(struct engine *engine, struct tr_context *ctx, struct sql_unit *rows);
/* Write the next request of LOOP_ROOM, if there is one. */
int engine_room_start(struct engine *engine);
int engine_room_take(
    struct engine *engine, const struct mxclient_outcome *outcome, const struct json *body);
void engine_status(const struct engine *engine, struct mxengine_status *ret_status);

/* ---- engine_people.c: devices and verifications ----------------------------------------------- */

/* Each starts a job, which it answers, keeps waiting, or leaves to the unit. */
void engine_job_devices(struct engine *engine, struct tr_context *ctx, struct mxengine_job *job);
void engine_job_import(struct engine *engine, struct tr_context *ctx, struct mxengine_job *job);
void engine_job_verify(struct engine *engine, struct tr_context *ctx, struct mxengine_job *job);
void engine_job_act(struct engine *engine, struct tr_context *ctx, struct mxengine_job *job);
void engine_job_news(struct engine *engine, struct tr_context *ctx, struct mxengine_job *job);
/* Count the devices of a room's members that a policy leaves out. */
uint32_t engine_count_unverified(
    const struct engine *engine, struct span room_id, enum mxclient_policy policy);
void engine_job_unverified(struct engine *engine, struct tr_context *ctx, struct mxengine_job *job);
/* Say that messages or time limits of verifications may be due. */
void engine_want_verify(struct engine *engine);
/* Note the steps that the stored unit had. */
void engine_take_news(struct engine *engine);
int engine_verify_start(struct engine *engine, struct sql_unit *unit);

/* ---- engine_media.c --------------------------------------------------------------------------- */

int engine_job_media(struct engine *engine, struct mxengine_job *job);
int engine_media_start(struct engine *engine);
int engine_media_take(
    struct engine *engine, const struct mxclient_outcome *outcome, const struct json *body);

#endif
