/* Numbers that were fitted to one machine: how much stays near, what is worth dividing, and what work takes.
 *
 * Source: an Intel Xeon with AVX-512, 2 MiB of second cache a core, its cores shared with other virtual machines;
 * docs/decisions/engine.md and docs/decisions/models-kernels.md have the measurements. Rates are of a core at 2.5 GHz.
 *
 * They are constants and not asked of the machine that runs, for three reasons. The lengths of sums (*_SUM) decide in
 * which order numbers are added, so results would differ from machine to machine. Choices by fixed rates
 * (`search=fixed`) are the same everywhere. And virtual machines report caches that they share or do not have. What a
 * machine does in fact is measured where that is wanted: rates.c runs small convolutions, tuning.c near ties.
 *
 * Each prefix is the file that reads them. */
#ifndef VME_MACHINE_H
#define VME_MACHINE_H

/* ---- operators/matmul.c */
enum {
    MATMUL_SUM = 384,      /* reals of k in a part. 256 and 512 measured alike */
    MATMUL_ROWS = 2048,    /* of a block, of float16 only, which is summed aside */
    MATMUL_COLUMNS = 2048, /* of a block */
    /* Bytes of b that a cell goes through again and again; 256 to 768 KiB measured alike. */
    MATMUL_NEAR = 512 << 10,
    MATMUL_PACKED_MAX = 4 << 20, /* bytes of packed operands of all matrices that are done at once */
    MATMUL_PANELS_MAX = 8,       /* of a cell that packs them: beside b they stay in the second cache */
    MATMUL_PANELS_MIN = 4,       /* where b comes from farther than that */
    MATMUL_SLIVERS_MIN = 8,      /* of a cell that packs its panels, which pays by their number */
    /* Multiply-adds of a vector of columns that take as long as b from a far cache. */
    MATMUL_AHEAD = 256,
    MATMUL_PIECE_MIN = 1 << 17,   /* multiply-adds, few enough to divide a middling product among threads */
    MATMUL_SMALL = 1 << 18,       /* multiply-adds of a product that is not worth a plan */
    MATMUL_VECTOR_WORK = 1 << 17, /* elements in a piece of a matrix times a vector, which waits for memory */
    MATMUL_DOTS = 1 << 16,        /* elements of a dot product's part, which are summed apart */
    MATMUL_NARROW = 512,          /* bytes of a row of b */
    MATMUL_FEW = 8,               /* vectors for which dot products are better than tiles */
    MATMUL_THIN = 8,              /* k up to which writing the output is what takes time */
    MATMUL_STRIPS_MAX = 96,       /* rows of a product that waits for b */
    MATMUL_STRIPS_MIN = 8 << 20,  /* bytes of b, once for each panel: a second cache is far from holding them */
};

/* ---- operators/elementwise.c */
enum {
    ELEMENTWISE_PARALLEL_MIN = 2 << 20, /* bytes touched; below, waking helpers costs more than they bring */
    /* Elements between two looks at the stop flag: well under a millisecond of plain work, of elements that lie apart,
     * and of costly functions. */
    ELEMENTWISE_PIECE = 32768,
    ELEMENTWISE_PIECE_STEPPING = 8192,
    ELEMENTWISE_PIECE_COSTLY = 4096,
    ELEMENTWISE_COLLECT_MIN = 16, /* elements of a run; below, collecting costs more than it brings */
    /* Elements of an operand on the stack where no row repeats: one is collected while another still divides. */
    ELEMENTWISE_BLOCK_APART = 256,
    ELEMENTWISE_REPEAT_MAX = 256,        /* elements of a row that repeats */
    ELEMENTWISE_REPEAT_BYTES_MAX = 1024, /* and bytes: longer ones are worth a kernel's call each */
    ELEMENTWISE_ALIGNED_MIN = 4096,      /* elements of a run that begins at a line */
};

/* ---- operators/reduce.c */
enum {
    REDUCE_PIECE = 32768,          /* elements that one accumulator folds at most: some 10 us */
    REDUCE_ROW_PIECE = 131072,     /* the same for a tile of accumulators */
    REDUCE_PARALLEL_MIN = 1 << 19, /* bytes touched; below, waking helpers costs more than they bring */
    REDUCE_OUTPUT_BYTES = 256,     /* what beginning and ending an output costs, in bytes */
    REDUCE_COLLECT_MIN = 32,       /* elements of a run; below, collecting costs more than it brings */
    REDUCE_ALIGNED_MIN = 1024,     /* elements of a run that begins at a line, where their order does not matter */
    REDUCE_FIRST = 256, /* elements in which all and any are looked for an answer before the work is divided */
};

/* ---- operators/raster.c */
enum {
    /* A transposed tile touches this much of each line: 512 x 512 bytes stay in the second-level cache. */
    RASTER_TILE_SIDE_BYTES = 512,
    RASTER_PIECE_BYTES = 1 << 17,  /* what one piece of work copies: some 20 us */
    RASTER_PARALLEL_MIN = 1 << 18, /* bytes; below, dividing costs more than it brings */
    RASTER_STREAM_MIN = 8 << 20,   /* bytes from which a copy goes past the caches */
    RASTER_STREAM_RUN_MIN = 4096,  /* in runs of at least this */
    RASTER_COLLECT_MIN = 16,       /* elements of a row; below, collecting costs more than it brings */
    RASTER_SQUARES_MIN = 8,        /* rows or columns from which a transposition goes by squares */
};

/* ---- models/convolution.c, and CONVOLUTION_SUM of models/winograd.c too */
enum {
    /* Numbers of a sum between two visits of the output. For few tiles so many that they stay in the nearest cache,
     * since the second one has enough to do with weights that come and are read once; for many so many that visits
     * are few. */
    CONVOLUTION_SUM = 384,
    CONVOLUTION_SUM_OF_MANY = 768,
    CONVOLUTION_MANY_TILES = 8,
    CONVOLUTION_SUM_APART = 256, /* where a tile itself visits the output between them */
    CONVOLUTION_BLOCK_MIN = 384, /* numbers of a sum */
    /* Bytes of the input that stay in the second cache while slivers of weights come and go. */
    CONVOLUTION_INPUT_NEAR = 1 << 20,
    CONVOLUTION_NEAR = 512 << 10, /* bytes of weights that stay there while pixels come and go */
    CONVOLUTION_NEAR_TILES = 4,   /* of a piece then: a sliver is read once from the nearest cache for each */
    CONVOLUTION_TILES_MAX = 64,   /* of a piece */
};

/* ---- models/winograd.c */
enum {
    WINOGRAD_BLOCK_BYTES = 1 << 20, /* of points, before and after the products: half a second cache */
    WINOGRAD_BAND_BYTES = 1 << 18,  /* the same where images are done by bands, which want the second cache too */
    WINOGRAD_GAP = 16, /* floats between points: equal places of all would share a set of the nearest cache */
};

/* ---- models/strassen.c */
enum {
    STRASSEN_HALF_MAX = 256, /* channels of half a block */
    /* Of the upper half whose pixels and sums are in the second cache beside the weights of two pairs. */
    STRASSEN_PANELS_MAX = 10,
    STRASSEN_WITHOUT_MAX = 4, /* rows that are left without another one, rather than have tiles that are not full */
};

/* ---- models/im2col.c */
enum {
    IM2COL_BLOCK_BYTES = 1 << 20, /* of copies: half a second cache */
    IM2COL_RUN = 48,              /* what beginning to copy a run costs, in Winograd's points */
};

/* ---- models/depthwise.c */
enum { DEPTHWISE_PIECE = 1 << 16 }; /* products between two looks at the stop flag, or one output's */

/* ---- models/tuning.c: what timings of a busy machine tell apart */
#define TUNING_NEAR 1.03 /* times the lowest cost: what is timed too */
#define TUNING_SURE 1.05 /* what is quicker by less than this is not what was expected, and may be chance */

/* ---- models/bands_choice.c: which bands there are changes no result */
enum {
    /* Bytes of strips, points and weights of a thread: what stays in its second cache while rows come and go. Three
     * quarters of it cost SqueezeNet 5 to 8 %. */
    BANDS_NEAR = 1 << 20,
    /* Of a value of so many bytes nothing is still near when it is read, and no byte is. */
    BANDS_FAR_FROM = 700 << 10,
    BANDS_FAR_ALL = 1400 << 10,
    BANDS_ROWS_MAX = 16, /* of a band */
    BANDS_PIECE_MIN = 8, /* rows, or of squares */
};
/* Nanoseconds: of a byte that is written and read far away instead of near, of a product, and of one band's step. */
#define BANDS_BYTE_NS    0.04
#define BANDS_PRODUCT_NS 0.0125
#define BANDS_START_NS   400.0

/* ---- models/attention.c: what the two algorithms take beside products, fitted to the times of both on all backends */
enum {
    /* As products, since kernels that are faster at these are so at exponentials: a score, and a row of them. */
    ATTENTION_SCORE_PRODUCTS = 32,
    ATTENTION_ROW_PRODUCTS = 5000,
    /* As bytes that are read or written. Of each number of k and v: to pack it, for vme_matmul to pack it, to read
     * it. Of each score: to go to the second cache and back, and to be a dot product by itself; of so many rows at
     * most vme_matmul makes these. */
    ATTENTION_PACKED_BYTES = 4,
    ATTENTION_MATMUL_BYTES = 2,
    ATTENTION_READ_BYTES = 1,
    ATTENTION_SCORE_BYTES = 3,
    ATTENTION_DOT_BYTES = 14,
    ATTENTION_DOT_ROWS = 16,
};

/* ---- models/rates.c: fixed choices go by the built-in rates */
enum {
    RATES_ROWS_MIN = 4,   /* a tile takes as long as one of so many rows at least */
    RATES_TILE_ROWS = 2,  /* and each as long as so many rows more */
    RATES_START_NS = 500, /* of a step */
};
#define RATES_TILE 2.5 /* products of a tile's column in a nanosecond: one each tick at 2.5 GHz */
/* Winograd's points, as products: their ratios were measured on several machines. */
#define RATES_POINT_2      14
#define RATES_POINT_4      18
#define RATES_WEIGHT_BYTES 12 /* a nanosecond */
#define RATES_BYTES        10
#define RATES_FARTHER      2.0 /* a network's weights come from farther than those of a run that is repeated */

#endif
