#include "runtime/internal.h"

#include "../kernels/embedding.h"

const embedding_row_kernels embedding_rows_avx2 = EMBEDDING_ROW_KERNELS;
