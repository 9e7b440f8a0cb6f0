/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/convo.h"

void convo_stream_committed(struct convo *convo, struct tr_context *ctx, const struct convo_op *op)
{
    (void)convo;
    (void)ctx;
    (void)op;
}

void convo_stream_end(struct convo *convo)
{
    (void)convo;
}
