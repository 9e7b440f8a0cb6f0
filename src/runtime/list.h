/* SPDX-License-Identifier: Apache-2.0 */
/* list.h: an intrusive doubly linked list with a head that is a link itself. */
#ifndef RUNTIME_LIST_H
#define RUNTIME_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct tr__link {
    struct tr__link *next, *prev;
};

/* The struct of `type` that has `pointer` as its `member`. */
#define tr__container(pointer, type, member)                                                       \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

static inline void tr__list_init(struct tr__link *list)
{
    list->next = list->prev = list;
}

/* Also tells whether a link is in no list. */
static inline bool tr__list_is_empty(const struct tr__link *list)
{
    return list->next == list;
}

static inline void tr__list_add(struct tr__link *list, struct tr__link *link)
{
    link->prev = list->prev;
    link->next = list;
    list->prev->next = link;
    list->prev = link;
}

static inline void tr__list_remove(struct tr__link *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    link->next = link->prev = link;
}

#endif
