/* SPDX-License-Identifier: Apache-2.0 */
/* policy_api.h: what the admins of a conversation decided about it: one table of fields, from the
 * JSON over the actor to the columns. */
#ifndef SERVICES_DELIVERY_API_POLICY_API_H
#define SERVICES_DELIVERY_API_POLICY_API_H

#include "json/json_write.h"
#include "sql/sql.h"

enum policy_field {
    POLICY_OPEN_JOIN,       /* strangers may join by an external commit */
    POLICY_INVITE_REQUIRED, /* but only with an invite */
    POLICY_REJOIN,          /* who left may come back by an external commit */
    POLICY_REJOIN_DAYS,     /* for so long */
    POLICY_MEMBERS_MAX,     /* 0: as many as the service allows */
    POLICY_APP_WINDOW,      /* epochs a message may lag; -1: as many as the service allows */
    POLICY_KEEP_ADMIN,      /* the last admin may not leave the others alone */
    POLICY_OPT_IN,          /* only who opted in, or accepted a request of the adder, is added */
    POLICY_FIELDS,
};

struct convo_policy {
    int64_t fields[POLICY_FIELDS];
};

/* In the order of the fields: the columns of `convos` that hold them. */
#define POLICY_COLUMNS                                                                             \
    "open_join, invite_required, allow_rejoin, rejoin_days, members_max, app_window, keep_admin,"  \
    " opt_in_required"

extern const struct convo_policy policy_default;
void policy_load(struct convo_policy *policy, const struct sql_unit *unit, uint32_t column);
/* {"policy": …, "success": true} */
void policy_write(const struct convo_policy *policy, struct span convo, struct buffer *out);

#endif
