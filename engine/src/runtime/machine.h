/* Constants fitted to one machine: cache capacities, the work from which dividing pays, and costs.
 *
 * Source: an Intel Xeon with AVX-512, 2 MiB of L2 cache a core, its cores shared with other virtual machines;
 * docs/decisions/engine.md and docs/decisions/models-kernels.md have the measurements. Rates are those of a core at 2.5
 * GHz.
 *
 * They are constants, not measured on the running machine, for three reasons. The lengths of sums (*_SUM) decide the
 * order in which numbers are added, so results would differ between machines. Choices by fixed rates (`search=fixed`)
 * must be the same everywhere. And virtual machines report caches that they share or do not have. Where the real
 * machine matters it is measured: rates.c runs small convolutions, tuning.c near ties.
 *
 * Each prefix names the file that reads the constants. */
#ifndef VME_MACHINE_H
#define VME_MACHINE_H

/* ---- operators/matmul.c */
enum {
    MATMUL_SUM = 384,      /* elements of k in one partial sum; 256 and 512 measured alike */
    MATMUL_ROWS = 2048,    /* rows of a block; float16 only, whose sums are kept in a separate buffer */
    MATMUL_COLUMNS = 2048, /* columns of a block */
    /* Bytes of b that a cell reads repeatedly; 256 to 768 KiB measured alike. */
    MATMUL_NEAR = 512 << 10,
    MATMUL_PACKED_MAX = 4 << 20, /* bytes of packed operands of all matrices computed at once */
    MATMUL_PANELS_MAX = 8,       /* panels of a cell that packs them: they stay in L2 beside b */
    MATMUL_PANELS_MIN = 4,       /* panels of a cell where b comes from beyond L2 */
    MATMUL_SLIVERS_MIN = 8,      /* minimum slivers of a cell that packs its panels; fewer do not pay for the packing */
    /* Multiply-adds for one vector of columns that cover the latency of loading b from a distant cache. */
    MATMUL_AHEAD = 256,
    MATMUL_PIECE_MIN = 1 << 17,   /* multiply-adds of a piece, small enough to divide medium products among threads */
    MATMUL_SMALL = 1 << 18,       /* multiply-adds of a product that is not worth a plan */
    MATMUL_VECTOR_WORK = 1 << 17, /* elements in a piece of a matrix-vector product, which is bound by memory */
    MATMUL_DOTS = 1 << 16,        /* elements in one partial sum of a dot product */
    MATMUL_NARROW = 512,          /* bytes of a row of b */
    MATMUL_FEW = 8,               /* number of vectors up to which dot products are faster than tiles */
    MATMUL_THIN = 8,              /* k up to which the time goes into writing the output */
    MATMUL_STRIPS_MAX = 96,       /* maximum rows of a product that is bound by loading b */
    MATMUL_STRIPS_MIN = 8 << 20,  /* bytes of b, which is loaded once for each panel: far more than L2 holds */
};

/* ---- operators/elementwise.c */
enum {
    ELEMENTWISE_PARALLEL_MIN = 1 << 20, /* bytes touched; below this, waking helpers costs more than it saves */
    ELEMENTWISE_PIECES_MIN = 8,
    /* Elements between two checks of the stop flag, well under a millisecond: contiguous elements, strided elements,
     * and costly functions. */
    ELEMENTWISE_PIECE = 32768,
    ELEMENTWISE_PIECE_STEPPING = 8192,
    ELEMENTWISE_PIECE_COSTLY = 4096,
    ELEMENTWISE_COLLECT_MIN = 16, /* elements of a run; below this, collecting costs more than it saves */
    /* Elements of an operand on the stack where no row repeats: one operand is collected while another is still being
     * divided. */
    ELEMENTWISE_BLOCK_APART = 256,
    ELEMENTWISE_REPEAT_MAX = 256,        /* elements of a row that repeats */
    ELEMENTWISE_REPEAT_BYTES_MAX = 1024, /* the same in bytes: longer rows are worth a kernel call each */
    ELEMENTWISE_ALIGNED_MIN = 4096,      /* elements of a run that starts at a cache line */
};

/* ---- operators/reduce.c */
enum {
    REDUCE_PIECE = 32768,          /* maximum elements folded by one accumulator: about 10 us */
    REDUCE_ROW_PIECE = 131072,     /* the same for a tile of accumulators */
    REDUCE_PARALLEL_MIN = 1 << 19, /* bytes touched; below this, waking helpers costs more than it saves */
    REDUCE_OUTPUT_BYTES = 256,     /* cost of starting and finishing one output, in bytes */
    REDUCE_COLLECT_MIN = 32,       /* elements of a run; below this, collecting costs more than it saves */
    REDUCE_ALIGNED_MIN = 1024,     /* elements of a run that starts at a cache line, where the order of elements does
                                    * not matter */
    REDUCE_FIRST = 256, /* elements that `all` and `any` search for an early answer before the work is divided */
};

/* ---- operators/raster.c */
enum {
    /* A transposed tile touches this much of each line: 512 x 512 bytes stay in the second-level cache. */
    RASTER_TILE_SIDE_BYTES = 512,
    RASTER_PIECE_BYTES = 1 << 17,  /* bytes copied by one piece: about 20 us */
    RASTER_PARALLEL_MIN = 1 << 18, /* bytes; below this, dividing costs more than it saves */
    RASTER_STREAM_MIN = 8 << 20,   /* bytes from which a copy bypasses the caches */
    RASTER_STREAM_RUN_MIN = 4096,  /* and the minimum bytes of its runs */
    RASTER_COLLECT_MIN = 16,       /* elements of a row; below this, collecting costs more than it saves */
    RASTER_SQUARES_MIN = 8,        /* rows or columns from which a transposition goes by square tiles */
};

/* ---- models/convolution.c, and CONVOLUTION_SUM of models/winograd.c too */
enum {
    /* Numbers of a sum between two visits of the output. Few tiles: few enough that they stay in L1, because L2 is busy
     * with weights that are read once. Many tiles: as many as possible, so that visits are rare. */
    CONVOLUTION_SUM = 384,
    CONVOLUTION_SUM_OF_MANY = 768,
    CONVOLUTION_MANY_TILES = 8,
    CONVOLUTION_SUM_APART = 256, /* the same where the tile itself adds to the output between partial sums */
    CONVOLUTION_BLOCK_MIN = 384, /* numbers of a sum */
    /* Bytes of the input that stay in L2 while slivers of weights are streamed. */
    CONVOLUTION_INPUT_NEAR = 1 << 20,
    CONVOLUTION_NEAR = 512 << 10, /* bytes of weights that stay in L2 while pixels are streamed */
    CONVOLUTION_NEAR_TILES = 4,   /* tiles of a piece in that case: a sliver is read from L1 for all but the first */
    CONVOLUTION_TILES_MAX = 64,   /* tiles of a piece */
};

/* ---- models/winograd.c */
enum {
    WINOGRAD_BLOCK_BYTES = 1 << 20, /* bytes of points, before and after the products: half of L2 */
    WINOGRAD_BAND_BYTES = 1 << 18,  /* the same where images are done by bands, which need L2 as well */
    WINOGRAD_GAP = 16, /* floats of padding between points: without it equal offsets of all points map to one set of L1
                        */
};

/* ---- models/strassen.c */
enum {
    STRASSEN_HALF_MAX = 256, /* channels of half a block */
    /* Panels of the upper half whose pixels and sums stay in L2 beside the weights of two pairs. */
    STRASSEN_PANELS_MAX = 10,
    STRASSEN_WITHOUT_MAX = 4, /* rows that are left out of pairs rather than computed in partial tiles */
};

/* ---- models/im2col.c */
enum {
    IM2COL_BLOCK_BYTES = 1 << 20, /* bytes of copies: half of L2 */
    IM2COL_RUN = 48,              /* cost of starting to copy a run, in Winograd points */
};

/* ---- models/depthwise.c */
enum { DEPTHWISE_PIECE = 1 << 16 }; /* products between two checks of the stop flag, or those of one output */

/* ---- models/tuning.c: differences that timings on a busy machine can resolve */
#define TUNING_NEAR 1.03 /* algorithms within this factor of the lowest cost are timed as well */
#define TUNING_SURE 1.05 /* smaller gains than this factor may be noise: the expected algorithm stays */

/* ---- models/bands_choice.c: the choice of bands changes no result */
enum {
    /* Bytes of strips, points and weights of a thread: what stays in L2 while rows are streamed. Three quarters of it
     * cost SqueezeNet 5 to 8 %. */
    BANDS_NEAR = 1 << 20,
    /* A value of FAR_FROM bytes is still in L2 when it is read; of one of FAR_ALL bytes nothing is. In between the
     * share is linear. */
    BANDS_FAR_FROM = 700 << 10,
    BANDS_FAR_ALL = 1400 << 10,
    BANDS_ROWS_MAX = 16, /* rows of a band */
    BANDS_PIECE_MIN = 8, /* minimum rows of a piece, or of Winograd squares */
};
/* Nanoseconds: of a byte written to and read from memory beyond L2, of a product, and of starting one step for one
 * band. */
#define BANDS_BYTE_NS    0.04
#define BANDS_PRODUCT_NS 0.0125
#define BANDS_START_NS   400.0

/* ---- models/attention.c: costs of both algorithms beside their products, fitted to their times on all backends */
enum {
    /* In products, because kernels that are faster at products are faster at exponentials too: a score, and a row of
     * scores. */
    ATTENTION_SCORE_PRODUCTS = 32,
    ATTENTION_ROW_PRODUCTS = 5000,
    /* In bytes read or written. For each number of k and v: packing it, packing it in vme_matmul, reading it. For each
     * score: a round trip to L2, and computing it as a dot product; the maximum number of rows for which vme_matmul
     * uses dot products. */
    ATTENTION_PACKED_BYTES = 4,
    ATTENTION_MATMUL_BYTES = 2,
    ATTENTION_READ_BYTES = 1,
    ATTENTION_SCORE_BYTES = 3,
    ATTENTION_DOT_BYTES = 14,
    ATTENTION_DOT_ROWS = 16,
};

/* ---- models/rates.c: fixed choices use the built-in rates */
enum {
    RATES_ROWS_MIN = 4,   /* a tile takes at least as long as one of this many rows */
    RATES_TILE_ROWS = 2,  /* cost of a tile in addition, in rows */
    RATES_START_NS = 500, /* of starting a step */
};
#define RATES_TILE 2.5 /* products of a tile's column per nanosecond: one each cycle at 2.5 GHz */
/* Winograd points, in products; the ratios were measured on several machines. */
#define RATES_POINT_2      14
#define RATES_POINT_4      18
#define RATES_WEIGHT_BYTES 12 /* per nanosecond */
#define RATES_BYTES        10
#define RATES_FARTHER \
    2.0 /* slowdown of a network's weights, which come from farther away than those of a repeated \
         * run */

#endif
