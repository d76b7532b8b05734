/* Every architecture that llama.cpp v0.5.0 names, in its order, and the tiny models that stand for it. */
#ifndef TS_ARCH_LIST_H
#define TS_ARCH_LIST_H

typedef struct arch_row {
    const char *arch;
    const char *variant; /* "dense", "MoE" or what sets it apart; NULL without a model */
    const char *recipe;  /* for tiny_model; NULL = llama.cpp cannot run it alone, for the reason below */
    const char *remark;  /* nullable: what the site table cannot know */
} arch_row;

extern const arch_row arch_list[]; /* ended by a row without an architecture */

#endif
