#include "runtime/internal.h"

#include "../kernels/embedding.h"

const embedding_row_kernels embedding_rows_portable = EMBEDDING_ROW_KERNELS;
