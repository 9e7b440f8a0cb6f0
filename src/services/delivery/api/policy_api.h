/* SPDX-License-Identifier: Apache-2.0 */
/* policy_api.h: a conversation's policy, which its admins set: one table of fields for the JSON, the
 * actor and the columns. */
#ifndef SERVICES_DELIVERY_API_POLICY_API_H
#define SERVICES_DELIVERY_API_POLICY_API_H

#include "json/json_write.h"
#include "sql/sql.h"

enum policy_field {
    POLICY_OPEN_JOIN,       /* any account may join by an external commit */
    POLICY_INVITE_REQUIRED, /* but only with an invite */
    POLICY_REJOIN,          /* a member that left may rejoin by an external commit */
    POLICY_REJOIN_DAYS,     /* within this time */
    POLICY_MEMBERS_MAX,     /* 0: as many as the service allows */
    POLICY_APP_WINDOW,      /* epochs a message may lag; -1: as many as the service allows */
    POLICY_KEEP_ADMIN,      /* the last admin cannot leave */
    POLICY_OPT_IN, /* added accounts must have opted in, or accepted a chat request of the caller */
    POLICY_FIELDS,
};

struct convo_policy {
    int64_t fields[POLICY_FIELDS];
};

/* The columns of `convos`, in the order of the fields. */
#define POLICY_COLUMNS                                                                             \
    "open_join, invite_required, allow_rejoin, rejoin_days, members_max, app_window, keep_admin,"  \
    " opt_in_required"

extern const struct convo_policy policy_default;
void policy_load(struct convo_policy *policy, const struct sql_unit *unit, uint32_t column);
/* Writes {"policy": …, "success": true}. */
void policy_write(const struct convo_policy *policy, struct span convo, struct buffer *out);

#endif
