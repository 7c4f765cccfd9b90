#include <errno.h>
#include "daemon/worker/hf.h"
#include "daemon/worker/hf_config.h"
int hf_config_read(const struct json *node, const char *path, struct transformer *ret, struct err *err) { (void)node; (void)ret; return err_set_at(err, -EOPNOTSUPP, path, "soon"); }
int hf_open(const char *dir, struct hf **ret, struct err *err) { (void)ret; return err_set_at(err, -EOPNOTSUPP, dir, "soon"); }
void hf_close(struct hf *f) { (void)f; }
const struct transformer *hf_transformer(const struct hf *f) { (void)f; return NULL; }
int hf_load(const struct hf *f, const struct st_tensor *t, size_t n, struct err *err) { (void)f; (void)t; (void)n; (void)err; return -EOPNOTSUPP; }
