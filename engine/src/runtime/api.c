/* The table of functions for the isolation core, which does not link this library: the host passes it a pointer. */
#include "runtime/internal.h"
#include "vme_embedding.h"

static const struct vme_api table = {
    .abi = VME_ABI,
    .size = sizeof table,
    .context_new = vme_context_new,
    .context_unref = vme_context_unref,
    .context_end = vme_context_end,
    .context_stop = vme_context_stop,
    .context_doing = vme_context_doing,
    .context_statistics = vme_context_statistics,
    .buffer_new = vme_buffer_new,
    .buffer_wrap = vme_buffer_wrap,
    .buffer_ref = vme_buffer_ref,
    .buffer_unref = vme_buffer_unref,
    .buffer_data = vme_buffer_data,
    .buffer_size = vme_buffer_size,
    .buffer_freeze = vme_buffer_freeze,
    .buffer_writable = vme_buffer_writable,
    .buffer_share = vme_buffer_share,
    .buffer_whole = vme_buffer_whole,
    .dtype_from_format = vme_dtype_from_format,
    .model_ref = vme_model_ref,
    .model_unref = vme_model_unref,
    .embedding_ref = vme_embedding_ref,
    .embedding_unref = vme_embedding_unref,
    .message = vme_message,
    .runs_observe = vme_runs_observe,
};

const struct vme_api *vme_api(void) { return &table; }
