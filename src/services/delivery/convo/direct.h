/* SPDX-License-Identifier: Apache-2.0 */
/* direct.h: the second driver of acts: it serves a conversation without its actor. Every change is
 * one transaction that locks the conversation's row (SQLite: BEGIN IMMEDIATE), reads the
 * conversation, plans and stores by the same table of acts, and has a COMMIT of its own. Nothing is
 * kept between requests. The actors are measured against this driver, and it is the fallback.
 *
 * The flag `delivery.direct` sets the share of conversations it serves, 0 % by default. Both
 * drivers may work on one conversation at the same time, for example when the flag changes: the
 * lock and the actor's compare-and-set decide, and the actor is told that its memory is out of
 * date.
 *
 * Streams, ephemeral messages and operators' questions stay with the actor: they are about
 * subscribers, which no database has. Turns (commit_fairness.c) exist in the actor alone. */
#ifndef SERVICES_DELIVERY_CONVO_DIRECT_H
#define SERVICES_DELIVERY_CONVO_DIRECT_H

#include "services/delivery/convo/act.h"
#include "services/delivery/delivery.h"

/* Registers the flag: before flags_open, so that a restart keeps its value. Repeating is fine. */
void direct_register(void);

struct direct;
int direct_start(struct delivery *delivery, struct direct **ret_direct);
/* Stops the workers after the last request and nulls *direct; NULL is fine. False, and not nulled:
 * a transaction is still running, so this and *delivery must stay; call again after sql_close. */
bool direct_stop(struct direct **direct);

/* Does the direct path serve this act? */
bool direct_takes(const struct direct *direct, const struct act *act);
/* The worker to ask with a struct act_envelope; borrowed. */
tr_sender direct_worker_of(const struct direct *direct, struct span convo);

#endif
