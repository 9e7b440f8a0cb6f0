/* SPDX-License-Identifier: Apache-2.0 */
/* convo_json.c: a conversation as JSON, for its members and for operators. */
#include "json/json_write.h"
#include "services/common/text.h"
#include "services/delivery/convo/convo.h"

void convo_write_view(const struct convo *convo, struct buffer *out)
{
    struct json_writer writer = json_writer(out);

    json_put_object(&writer, NULL);
    json_put_string(&writer, "id", convo_span(convo));
    json_put_string(&writer, "groupId", convo_group_name(convo));
    json_put_string(&writer, "creator", convo->texts.creator);
    json_put_array(&writer, "members");
    for (uint32_t i = 0; i < convo->roster.count; i++) {
        const struct member *member = &convo->roster.members[i];

        if (!member->is_in)
            continue;
        json_put_object(&writer, NULL);
        json_put_string(&writer, "did", member_did(member));
        json_put_string(&writer, "userDid", member_did(member));
        text_put_time(&writer, "joinedAt", member->joined_ms);
        json_put_bool(&writer, "isAdmin", member_is_admin(member));
        json_put_bool(&writer, "isModerator", member_is_moderator(member));
        json_put_end(&writer);
    }
    json_put_end(&writer);
    json_put_int(&writer, "epoch", (int64_t)convo->committed.epoch);
    json_put_string(&writer, "cipherSuite", convo->texts.suite);
    text_put_time(&writer, "createdAt", convo->created_ms);
    text_put_time(&writer, "lastMessageAt", convo->active_ms);
    json_put_object(&writer, "metadata");
    if (convo->texts.name.size > 0)
        json_put_string(&writer, "name", convo->texts.name);
    if (convo->texts.description.size > 0)
        json_put_string(&writer, "description", convo->texts.description);
    json_put_end(&writer);
    json_put_end(&writer);
}

void convo_write_state(const struct convo *convo, struct buffer *out)
{
    static const char *const kinds[] = { "undecided", "mls", "numbered" };
    struct json_writer writer = json_writer(out);

    json_put_object(&writer, NULL);
    json_put_string(&writer, "id", convo_span(convo));
    json_put_bool(&writer, "exists", convo->is_there);
    json_put_text(&writer, "kind", kinds[convo->committed.kind]);
    json_put_int(&writer, "epoch", (int64_t)convo->committed.epoch);
    json_put_int(&writer, "seq", (int64_t)convo->committed.seq);
    json_put_int(&writer, "confirmedEpoch", (int64_t)convo->committed.confirmed);
    json_put_int(&writer, "plannedEpoch", (int64_t)convo->planned.epoch);
    json_put_int(&writer, "plannedSeq", (int64_t)convo->planned.seq);
    json_put_int(&writer, "members", convo->roster.in_count);
    json_put_int(&writer, "inFlight", convo->flying.count);
    json_put_int(&writer, "waiting", convo->waiting.count);
    json_put_int(&writer, "subscribers", convo->subscriber_count);
    json_put_end(&writer);
}
