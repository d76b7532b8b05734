/* Trust in redirection is earned per graph shape: which kernels run can depend on addresses, and a backend
 * may fuse a site away. Each shape is run plain, redirected into a NaN pattern, and asked; rows and logits are
 * compared. What differs is asked for from then on. */
#ifndef TS_HOST_TRUST_H
#define TS_HOST_TRUST_H

#include "host/tap.h"

/* On a context whose memory may be cleared; leaves the tap live and the memory empty. TS_ERR_UNSUPPORTED when
 * even asking changes the logits. */
int ts_trust_earn(ts_tap *tap, struct llama_context *ctx, ts_error *err);

#endif
