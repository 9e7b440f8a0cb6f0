/* SPDX-License-Identifier: Apache-2.0 */
/* ready.h: common to the ready-made actors: single_flight.h, breaker.h, rate.h, cache.h, topic.h
 * (pool.h is a set of actors).
 *
 * Each is an ordinary actor: a struct that holds its options, and a type. tr_cache_spawn(system,
 * &options, NULL, &sender) starts one; a row { .type = &tr_cache_type, .state = &cache } in a
 * supervisor's table starts one too, and tr_cache_of() makes a typed sender of the table's sender.
 * The actor's start allocates its memory and its end frees it; a restart begins empty. (The type's
 * finish frees a state that was handed back.) It is reached through its own functions only, so a
 * wrong message is a compile error.
 *
 * Functions that take a context ask from an actor: the answer comes as TR_EVENT_REPLY with the tag
 * of the options. Functions that end in _wait ask from a thread that is not a worker. Functions
 * without a context are tells, from anywhere; unlike other tells they do not expire with the
 * message being handled, because facts such as "this key is stale" must not get lost. All can fail
 * as tr_ask, tr_ask_wait and tr_tell do (TR_ECLOSED, TR_EFULL, TR_ENOMEM, …), and with TR_ETOOBIG
 * for a key or value over its limit. */
#ifndef TROUPE_READY_H
#define TROUPE_READY_H

#include <troupe/actor.h>
#include <troupe/ask.h>
#include <troupe/sender.h>
#include <troupe/system.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Keys are bytes, 0 to this many. */
enum { TR_KEY_SIZE_MAX = 1024 };

#ifdef __cplusplus
}
#endif

#endif
