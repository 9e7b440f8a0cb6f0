/* SPDX-License-Identifier: Apache-2.0 */
/* routes.c: every call of the service, in one table, and the service itself. */
#include "services/delivery/api.h"
#include "services/delivery/schema.h"

static const struct http_route routes[] = {
    XRPC(HTTP_POST, "createConvo", api_create_convo, API_COMMIT),
    XRPC(HTTP_POST, "addMembers", api_add_members, API_COMMIT),
    XRPC(HTTP_POST, "removeMember", api_remove_member, API_COMMIT),
    XRPC(HTTP_POST, "leaveConvo", api_leave_convo, API_COMMIT),
    XRPC(HTTP_POST, "submitCommit", api_submit_commit, API_COMMIT),
    XRPC(HTTP_POST, "processExternalCommit", api_process_external_commit, API_COMMIT),
    XRPC(HTTP_POST, "updateGroupInfo", api_update_group_info, API_COMMIT),
    XRPC(HTTP_GET, "getConvo", api_get_convo, 0),
    XRPC(HTTP_GET, "getConvos", api_get_convos, 0),
    XRPC(HTTP_GET, "getEpoch", api_get_epoch, 0),
    XRPC(HTTP_GET, "getGroupInfo", api_get_group_info, 0),
    XRPC(HTTP_POST, "sendMessage", api_send_message, API_MESSAGE),
    XRPC(HTTP_POST, "sendProposal", api_send_proposal, API_COMMIT),
    XRPC(HTTP_POST, "updateCursor", api_update_cursor, API_SMALL),
    XRPC(HTTP_GET, "getMessages", api_get_messages, 0),
    XRPC(HTTP_GET, "getCommits", api_get_commits, 0),
    XRPC(HTTP_GET, "getUnread", api_get_unread, 0),
    XRPC(HTTP_POST, "getSubscriptionTicket", api_get_subscription_ticket, API_SMALL),
    /* With a token, or with a ticket in the query: the handler looks at that one. */
    {
        .method = HTTP_GET,
        .path = "/xrpc/" XRPC_PREFIX "subscribeConvoEvents",
        .handle = api_subscribe_convo_events,
        .gate = auth_gate,
        .flags = HTTP_ROUTE_LONG,
        .label = "subscribeConvoEvents",
        .extra = &(const struct auth_demand){ .lxm = XRPC_PREFIX "subscribeConvoEvents",
            .anonymous = true },
    },
};

const struct service delivery_service = {
    .name = "delivery",
    .routes = routes,
    .route_count = sizeof routes / sizeof routes[0],
    .migrations = delivery_migrations,
    .migration_count = DELIVERY_MIGRATIONS,
    .start = delivery_start,
    .stop = delivery_stop,
    .is_ready = delivery_is_ready,
};
