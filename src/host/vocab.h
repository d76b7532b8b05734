/* What llama.cpp's tokenizer cannot do with a flawed vocabulary: it would end the process. */
#ifndef TS_HOST_VOCAB_H
#define TS_HOST_VOCAB_H

#include "host/model.h"

/* Once, when the model is loaded: which bytes have no token. */
void ts_vocab_learn(ts_model *m);
/* Can this text (valid UTF-8) be tokenized? `add`: with the tokens that the model puts around a text. TS_ERR_MODEL names the model and
 * what its vocabulary lacks. */
int ts_vocab_check_text(const ts_model *m, const char *text, size_t length, bool add, ts_error *err);

#endif
