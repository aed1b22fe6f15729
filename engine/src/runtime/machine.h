/* Constants fitted to one machine: cache capacities, minimum work worth dividing among threads, and costs.
 *
 * Source: an Intel Xeon with AVX-512, 2 MiB of L2 cache a core, its cores shared with other virtual machines;
 * docs/decisions/engine.md and docs/decisions/models-kernels.md have the measurements. Rates are those of a core at 2.5
 * GHz.
 *
 * They are not measured on the running machine, for three reasons. The lengths of partial sums (*_SUM) determine the
 * order of additions, so results would differ between machines. Choices by fixed rates (`search=fixed`) must be the
 * same everywhere. And virtual machines report caches that they share or do not have. Choices that depend on the real
 * machine measure it: rates.c times small convolutions, tuning.c times algorithms with nearly equal costs.
 *
 * Each prefix names the file that reads the constants. */
#ifndef VME_MACHINE_H
#define VME_MACHINE_H

/* ---- operators/matmul.c */
enum {
    MATMUL_SUM = 384,      /* elements of k in one partial sum; 256 and 512 measured alike */
    MATMUL_ROWS = 2048,    /* rows of a block; float16 only, because its float32 sums are in a separate buffer */
    MATMUL_COLUMNS = 2048, /* columns of a block */
    /* Bytes of b that stay in L2 while a cell reads them repeatedly; 256 to 768 KiB measured alike. */
    MATMUL_NEAR = 512 << 10,
    MATMUL_PACKED_MAX = 4 << 20, /* bytes of packed operands of all matrices computed at once */
    MATMUL_PANELS_MAX = 8,       /* maximum panels of a cell that packs them: they stay in L2 beside b */
    MATMUL_PANELS_MIN = 4,       /* minimum panels of a cell where b does not fit in L2 */
    MATMUL_SLIVERS_MIN = 8,      /* minimum slivers of a cell that packs its panels; fewer are not worth the packing */
    /* Prefetch distance in multiply-adds of one vector of columns: they hide the latency of loading b from memory. */
    MATMUL_AHEAD = 256,
    MATMUL_PIECE_MIN = 1 << 17,   /* multiply-adds of a piece: few enough to divide medium products among threads */
    MATMUL_SMALL = 1 << 18,       /* multiply-adds up to which a product is computed without a plan */
    MATMUL_VECTOR_WORK = 1 << 17, /* elements of a piece of a matrix-vector product, which is memory-bound */
    MATMUL_DOTS = 1 << 16,        /* elements in one partial sum of a dot product */
    MATMUL_NARROW = 512,          /* bytes of a row of b; shorter rows need packing only for more panels */
    MATMUL_FEW = 8,         /* number of vectors up to which kernels for vectors (dots, sums) are faster than tiles */
    MATMUL_THIN = 8,        /* k up to which a product is bound by writing its output */
    MATMUL_STRIPS_MAX = 96, /* maximum rows of a product computed by strips, which is bound by loading b */
    MATMUL_STRIPS_MIN = 8 << 20, /* minimum bytes of b times panels for strips: far more than L2 holds */
};

/* ---- operators/elementwise.c */
enum {
    ELEMENTWISE_PARALLEL_MIN = 1 << 20, /* bytes touched; below this, waking helpers costs more than it saves */
    ELEMENTWISE_PIECES_MIN = 8,
    /* Elements between two checks of the stop flag, well under a millisecond of work: of contiguous operands, of
     * strided operands, and of costly functions. */
    ELEMENTWISE_PIECE = 32768,
    ELEMENTWISE_PIECE_STEPPING = 8192,
    ELEMENTWISE_PIECE_COSTLY = 4096,
    ELEMENTWISE_COLLECT_MIN = 16, /* elements of a run; below this, collecting costs more than it saves */
    /* Elements of a staged block if no row repeats: short blocks, so that the next operand is collected while the last
     * results are still being computed. */
    ELEMENTWISE_BLOCK_APART = 256,
    ELEMENTWISE_REPEAT_MAX = 256,        /* maximum elements of a repeated row */
    ELEMENTWISE_REPEAT_BYTES_MAX = 1024, /* the same in bytes; longer rows are worth a kernel call each */
    ELEMENTWISE_ALIGNED_MIN = 4096,      /* minimum elements of a run that is aligned to a cache line */
};

/* ---- operators/reduce.c */
enum {
    REDUCE_PIECE = 32768,          /* maximum elements folded by one accumulator: about 10 us */
    REDUCE_ROW_PIECE = 131072,     /* the same for all accumulators of a tile */
    REDUCE_PARALLEL_MIN = 1 << 19, /* bytes touched; below this, waking helpers costs more than it saves */
    REDUCE_OUTPUT_BYTES = 256,     /* cost of starting and finishing one output, in bytes */
    REDUCE_COLLECT_MIN = 32,       /* elements of a run; below this, collecting costs more than it saves */
    REDUCE_ALIGNED_MIN = 1024,     /* minimum elements of a run that is aligned to a cache line, for reductions in any
                                    * order */
    REDUCE_FIRST = 256, /* elements that `all` and `any` check for an early result before the work is divided */
};

/* ---- operators/raster.c */
enum {
    /* Side of a tile of a transposition: 512 x 512 bytes stay in L2. */
    RASTER_TILE_SIDE_BYTES = 512,
    RASTER_PIECE_BYTES = 1 << 17,  /* bytes copied by one piece: about 20 us */
    RASTER_PARALLEL_MIN = 1 << 18, /* bytes; below this, dividing costs more than it saves */
    RASTER_STREAM_MIN = 8 << 20,   /* minimum bytes of a copy that bypasses the caches */
    RASTER_STREAM_RUN_MIN = 4096,  /* minimum bytes of a run of such a copy */
    RASTER_COLLECT_MIN = 16,       /* elements of a row; below this, collecting costs more than it saves */
    RASTER_SQUARES_MIN = 8,        /* minimum rows or columns of a transposition by square tiles */
};

/* ---- models/convolution.c, and CONVOLUTION_SUM of models/winograd.c too */
enum {
    /* Terms of a partial sum, after which the output is updated. For few tiles: few enough that the inputs stay in L1,
     * because weights that are read once stream through L2. For many tiles: many, so that updates are rare. */
    CONVOLUTION_SUM = 384,
    CONVOLUTION_SUM_OF_MANY = 768,
    CONVOLUTION_MANY_TILES = 8,
    CONVOLUTION_SUM_APART = 256, /* the same if the tile itself adds each partial sum to the output */
    CONVOLUTION_BLOCK_MIN = 384, /* minimum terms of a block of a sum */
    /* Bytes of the input that stay in L2 while slivers of weights are streamed. */
    CONVOLUTION_INPUT_NEAR = 1 << 20,
    CONVOLUTION_NEAR = 512 << 10, /* bytes of weights that stay in L2 while pixels are streamed */
    CONVOLUTION_NEAR_TILES = 4,   /* tiles of a piece in that case: all but the first read a sliver from L1 */
    CONVOLUTION_TILES_MAX = 64,   /* maximum tiles of a piece */
};

/* ---- models/winograd.c */
enum {
    WINOGRAD_BLOCK_BYTES = 1 << 20, /* bytes of the points of a block, before and after the products: half of L2 */
    WINOGRAD_BAND_BYTES = 1 << 18,  /* the same if images are computed by bands, which need L2 as well */
    WINOGRAD_GAP = 16, /* floats of padding between points; without it the same offset in all points would map to one L1
                        * set */
};

/* ---- models/strassen.c */
enum {
    STRASSEN_HALF_MAX = 256, /* maximum channels of half a block */
    /* Maximum panels of the upper half whose pixels and sums stay in L2 beside the weights of two pairs. */
    STRASSEN_PANELS_MAX = 10,
    STRASSEN_WITHOUT_MAX = 4, /* maximum rows left unpaired; for more, panels have fewer rows than a tile */
};

/* ---- models/im2col.c */
enum {
    IM2COL_BLOCK_BYTES = 1 << 20, /* bytes of copies: half of L2 */
    IM2COL_RUN = 48,              /* cost of starting to copy a run, in Winograd points */
};

/* ---- models/depthwise.c */
enum { DEPTHWISE_PIECE = 1 << 16 }; /* products between two checks of the stop flag, rounded up to whole rows */

/* ---- models/tuning.c: ratios of times that can be measured on a busy machine */
#define TUNING_NEAR 1.03 /* algorithms within this factor of the lowest cost are timed as well */
#define TUNING_SURE 1.05 /* gains below this factor may be noise: the expected algorithm stays */

/* ---- models/bands_choice.c: the choice of bands changes no result */
enum {
    /* Bytes of a thread's strips, points and weights, which stay in L2 while rows are streamed. With three quarters of
     * this, SqueezeNet took 5 to 8 % longer. */
    BANDS_NEAR = 1 << 20,
    /* When a value is read, all of it is still in L2 up to FAR_FROM bytes, and nothing from FAR_ALL bytes on; in
     * between the share is linear. */
    BANDS_FAR_FROM = 700 << 10,
    BANDS_FAR_ALL = 1400 << 10,
    BANDS_ROWS_MAX = 16, /* maximum rows of a band */
    BANDS_PIECE_MIN = 8, /* minimum rows of a piece, or of Winograd squares */
};
/* Nanoseconds for writing and reading a byte beyond L2, for a product, and for starting one step on one band. */
#define BANDS_BYTE_NS    0.04
#define BANDS_PRODUCT_NS 0.0125
#define BANDS_START_NS   400.0

/* ---- models/attention.c: costs of both algorithms in addition to their products, fitted to times on all backends */
enum {
    /* Costs of a score and of a row of scores, in products: backends with faster products have faster exponentials. */
    ATTENTION_SCORE_PRODUCTS = 32,
    ATTENTION_ROW_PRODUCTS = 5000,
    /* Costs in bytes read or written. For each element of k and v: packing it, packing it in vme_matmul, reading it.
     * For each score: writing it to L2 and reading it again; computing it as a dot product. DOT_ROWS is the maximum
     * number of rows for which vme_matmul uses dot products. */
    ATTENTION_PACKED_BYTES = 4,
    ATTENTION_MATMUL_BYTES = 2,
    ATTENTION_READ_BYTES = 1,
    ATTENTION_SCORE_BYTES = 3,
    ATTENTION_DOT_BYTES = 14,
    ATTENTION_DOT_ROWS = 16,
};

/* ---- models/rates.c: the built-in rates, for fixed choices */
enum {
    RATES_ROWS_MIN = 4,   /* a tile takes as long as one of at least this many rows */
    RATES_TILE_ROWS = 2,  /* fixed cost of a tile, in rows */
    RATES_START_NS = 500, /* cost of starting a step */
};
#define RATES_TILE 2.5 /* products per nanosecond for each column of a tile: one per cycle at 2.5 GHz */
/* Costs of a Winograd point, in products; the ratios were measured on several machines. */
#define RATES_POINT_2      14
#define RATES_POINT_4      18
#define RATES_WEIGHT_BYTES 12 /* per nanosecond */
#define RATES_BYTES        10
#define RATES_FARTHER \
    2.0 /* how many times longer loading weights takes in a network than in repeated runs of one step, \
         * whose weights are in a nearer cache */

#endif
