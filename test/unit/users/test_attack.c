/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies that were made to break the users service. */
#include <stdlib.h>

#include "user_site.h"

TEST(attack, long_names_of_sessions_in_a_large_push_do_no_harm)
{
    enum { ROWS = 855, NAME = 255 };
    struct buffer body = { 0 };
    struct user_site site;
    struct person ada;
    char name[NAME + 1];

    memset(name, 's', NAME);
    name[NAME] = '\0';
    user_site_begin(&site);
    ada = site_sign_in(&site, "ada", "user");
    buffer_format(&body,
        "{\"device_id\":\"phone\",\"changes\":{\"sessions\":[{\"id\":\"%s\","
        "\"client_updated_at\":1}],\"session_items\":[",
        name);
    for (int i = 0; i < ROWS; i++)
        buffer_format(&body, "%s{\"id\":\"%d\",\"client_updated_at\":1,\"session_id\":\"%s\"}",
            i == 0 ? "" : ",", i, name);
    buffer_text(&body, "]}}");
    buffer_append(&body, "", 1);
    CHECK_EQ_INT(body.failed, 0);
    check_answer(
        site_post(&site, &ada, "/v1/sync/push", body.bytes), 200, "\"applied\":856,\"skipped\":0");
    buffer_free(&body);
    user_site_end(&site);
}
