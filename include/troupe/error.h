/* SPDX-License-Identifier: Apache-2.0 */
/* error.h: the one error space of the library. Fallible functions return 0 or one of these,
 * negative. */
#ifndef TROUPE_ERROR_H
#define TROUPE_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

#define TR_API __attribute__((visibility("default")))

/* X(name, number, text). The first eight are what the runtime ends an ask with: see ask.h. An
 * answer may carry any of these, or another negative code. */
#define TR_ERRORS(X)                                                                               \
    X(TR_EFULL, 1, "the box is full")                                                              \
    X(TR_ECLOSED, 2, "the actor has ended and takes no more messages")                             \
    X(TR_EDROPPED, 3, "the receiver let go of the request without answering")                      \
    X(TR_ECRASHED, 4, "the receiver failed while it had the request")                              \
    X(TR_ETIMEOUT, 5, "the deadline passed")                                                       \
    X(TR_ECANCELLED, 6, "cancelled by the caller")                                                 \
    X(TR_EDEADLOCK, 7, "waiting here would close a circle of actors that wait for each other")     \
    X(TR_ENOMEM, 8, "out of memory")                                                               \
    X(TR_EINVAL, 9, "invalid argument")                                                            \
    X(TR_ETOOBIG, 10, "the message or value is larger than allowed")                               \
    X(TR_ENOENT, 11, "no such thing")                                                              \
    X(TR_EEXIST, 12, "exists already")                                                             \
    X(TR_ELIMIT, 13, "a configured limit is reached")                                              \
    X(TR_EBUSY, 14, "in use: try again when it is idle")                                           \
    X(TR_EAGAIN, 15, "not now: nothing is ready yet")                                              \
    X(TR_EIO, 16, "an input or output operation failed")                                           \
    X(TR_ENOSPC, 17, "no space left")                                                              \
    X(TR_EPROTO, 18, "the peer sent something that is not part of the protocol")                   \
    X(TR_EREPLIED, 19, "this request has been answered already")                                   \
    X(TR_EUNSUPPORTED, 20, "not available in this kind of system or version")                      \
    X(TR_EOPEN, 21, "the circuit is open: the service behind it is failing")                       \
    X(TR_ERATE, 22, "over the allowed rate")                                                       \
    X(TR_EACCES, 23, "permission denied")

#define TR__ERROR_ENUM(name, number, text) name = -(4000 + (number)),
enum tr_error { TR_ERRORS(TR__ERROR_ENUM) };
#undef TR__ERROR_ENUM

/* Name ("TR_EFULL") and sentence of a code. Never NULL; 0 is "TR_OK" and "success". */
TR_API const char *tr_error_name(int error);
TR_API const char *tr_error_text(int error);

#ifdef __cplusplus
}
#endif

#endif
