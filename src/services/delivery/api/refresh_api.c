/* SPDX-License-Identifier: Apache-2.0 */
/* refresh_api.c: groupInfoRefresh: a member that wants to rejoin by an external commit asks the
 * others for a GroupInfo of the current epoch. Current subscribers hear it and send one with
 * updateGroupInfo. The answer says how many members heard it. */
#include "services/delivery/api/api.h"

static void put_refresh(struct json_writer *writer, struct act *act)
{
    json_put_bool(writer, "requested", act_notice(act)->count > 0);
    json_put_int(writer, "activeMembers", (int64_t)act_notice(act)->count);
}

static void refresh_answered(struct http_request *request, const struct tr_event *event)
{
    api_answer_with(request, event, put_refresh);
}

void api_group_info_refresh(struct http_request *request)
{
    struct api_body body;

    if (api_begin_convo(request, &refresh_act_type, &body))
        api_send(request, &body, refresh_answered);
}
