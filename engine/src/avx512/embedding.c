#include "runtime/internal.h"

#include "../kernels/embedding.h"

const embedding_row_kernels embedding_rows_avx512 = EMBEDDING_ROW_KERNELS;
