/* SPDX-License-Identifier: Apache-2.0 */
/* user_push.h: see user_push.c. */
#ifndef SERVICES_USERS_USER_PUSH_H
#define SERVICES_USERS_USER_PUSH_H

#include "services/common/param.h"
#include "services/users/user_job.h"

/* Fill the job from the body of the reader's request. A mistake fails the reader. */
void user_push_read(struct user_job *job, struct param_reader *reader, int64_t now_ms);

#endif
