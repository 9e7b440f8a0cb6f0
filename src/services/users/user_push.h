/* SPDX-License-Identifier: Apache-2.0 */
/* user_push.h: see user_push.c. */
#ifndef SERVICES_USERS_USER_PUSH_H
#define SERVICES_USERS_USER_PUSH_H

#include "json/json_expect.h"
#include "services/users/user_job.h"

/* Fill the job from a body of `body_size` bytes of JSON. Returns TR_EINVAL if `body` has failed with
 * a sentence for the client, or TR_ENOMEM. */
int user_push_read(
    struct user_job *job, struct json_expect *body, size_t body_size, int64_t now_ms);

#endif
