/* SPDX-License-Identifier: Apache-2.0 */
/* direct.h: the other way to serve a conversation: without its actor. Every request that changes
 * something is one transaction: it locks the conversation's row (in SQLite: BEGIN IMMEDIATE, which
 * keeps out everybody), reads the conversation, decides by the same rules (convo_plan.c), stores
 * the same rows (convo_store.c) and has a COMMIT of its own. Nothing is kept between requests, and
 * it is the database that puts them in order. It is what the actors are measured against, and what
 * to fall back to.
 *
 * The flag `delivery.direct` says for which part of the conversations; 0 % unless somebody sets it.
 * Both ways may work on one conversation at the same time, as they do for a moment when the flag
 * changes: the lock and the actor's compare-and-set decide, and an actor that has become old is
 * told so.
 *
 * Streams, ephemeral messages and what operators look at stay with the actor: they are about who
 * listens, which is in no database. Turns for losers (convo_turn.c) are the actor's alone. */
#ifndef SERVICES_DELIVERY_CONVO_DIRECT_H
#define SERVICES_DELIVERY_CONVO_DIRECT_H

#include "services/delivery/convo/job.h"
#include "services/delivery/delivery.h"

/* Make the flag known: before flags_open, so that a restart keeps what was set. Again is harmless.
 */
void direct_register(void);

struct direct;
int direct_start(struct delivery *delivery, struct direct **ret_direct);
/* After the last request. Nulls *direct; NULL is fine. False, and not nulled: a transaction that
 * hangs still decides something, so that this and *delivery must stay; again after sql_close. */
bool direct_stop(struct direct **direct);

/* Is this job to be done without the actor? */
bool direct_takes(const struct direct *direct, const struct job *job);
/* Whom to ask instead, with a struct job_message; borrowed. */
tr_sender direct_desk(const struct direct *direct, const struct job *job);

#endif
