/* The engine on an NVIDIA GPU: networks and embedding tables in its memory. It is a library of its own, libvme_cuda.so
 * (`make cuda`), which engine/cuda/library.py opens for device="cuda"; nothing else needs it.
 *
 * Every function that can fail returns a vme_cuda_status; vme_cuda_message() has the message, in the calling thread.
 * Objects of a device keep it alive. Any number of threads may use one device; a plan may be used by one thread at a
 * time. */
#ifndef VME_CUDA_H
#define VME_CUDA_H

#include <stdint.h>

#define VME_CUDA_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

#define VME_CUDA_ABI          1
#define VME_CUDA_RANK         8
#define VME_CUDA_OPERANDS     8
#define VME_CUDA_INSTRUCTIONS 12

typedef enum vme_cuda_status {
    VME_CUDA_OK,
    VME_CUDA_NO_DEVICE,
    VME_CUDA_NO_MEMORY,
    VME_CUDA_BAD_VALUE,
    VME_CUDA_FAILED, /* an error of CUDA or cuBLAS */
} vme_cuda_status;

VME_CUDA_API int vme_cuda_abi(void);
VME_CUDA_API const char *vme_cuda_message(void);
VME_CUDA_API vme_cuda_status vme_cuda_count(int *devices);

/* ---- devices */
typedef struct vme_cuda_device vme_cuda_device;
/* memory_bytes: maximum GPU memory of its objects; 0: no limit. */
VME_CUDA_API vme_cuda_status vme_cuda_device_new(int number, int64_t memory_bytes, vme_cuda_device **device);
VME_CUDA_API void vme_cuda_device_unref(vme_cuda_device *device);
typedef struct vme_cuda_device_facts {
    char name[256];
    int64_t memory_bytes, free_bytes; /* of the GPU, now */
    int64_t used_bytes, limit_bytes;  /* by this device's objects; 0: no limit */
    int32_t multiprocessors, major, minor;
} vme_cuda_device_facts;
VME_CUDA_API vme_cuda_status vme_cuda_device_facts_of(vme_cuda_device *device, vme_cuda_device_facts *facts);

/* A queue of work, in order. */
typedef struct vme_cuda_stream vme_cuda_stream;
VME_CUDA_API vme_cuda_status vme_cuda_stream_new(vme_cuda_device *device, vme_cuda_stream **stream);
VME_CUDA_API void vme_cuda_stream_unref(vme_cuda_stream *stream);

/* ---- embedding tables: as in vme_embedding.h, with all rows in GPU memory */
typedef struct vme_cuda_table vme_cuda_table;
typedef struct vme_cuda_table_options { /* as vme_embedding_options; no Bloom filter, no disk */
    int64_t dim;
    int32_t optimizer;
    int64_t filter_freq;
    float no_permission, slot_initial;
    int64_t steps_to_live;
    float l2_weight_threshold;
    int64_t default_rows;
    const float *defaults; /* copied */
    int64_t quota_bytes;
    uint64_t seed;
} vme_cuda_table_options;
VME_CUDA_API vme_cuda_status vme_cuda_table_new(vme_cuda_device *device, const vme_cuda_table_options *options,
                                                vme_cuda_table **table);
VME_CUDA_API void vme_cuda_table_unref(vme_cuda_table *table);
typedef struct vme_cuda_table_facts {
    int64_t rows, waiting, changed, bytes, step;
} vme_cuda_table_facts;
VME_CUDA_API void vme_cuda_table_facts_of(vme_cuda_table *table, vme_cuda_table_facts *facts);

typedef struct vme_cuda_bags { /* as vme_embedding_bags, in host memory */
    vme_cuda_table *table;
    int64_t ids_count;
    const int64_t *ids, *offsets; /* offsets: bags + 1 */
    const float *weights;         /* NULL: each is 1 */
    int64_t default_id;           /* below 0: zeros */
    int32_t combiner;
    float *dense; /* [bags, dim], rows `step` floats apart: the result, or its gradient */
    int64_t step;
} vme_cuda_bags;
VME_CUDA_API vme_cuda_status vme_cuda_table_lookup(vme_cuda_table *table, int64_t n, const int64_t *ids, float *out);
/* All tables must be on one device. */
VME_CUDA_API vme_cuda_status vme_cuda_lookup_bags(int count, int64_t bag_count, const vme_cuda_bags *bags);

typedef struct vme_cuda_rates { /* as vme_embedding_rates */
    double learning_rate, eps, beta1, beta2, l1, l2, beta;
    int64_t updates, step;
} vme_cuda_rates;
/* A gradient step, as vme_embedding_update: gradients [n, dim]. */
VME_CUDA_API vme_cuda_status vme_cuda_table_update(vme_cuda_table *table, const vme_cuda_rates *rates, int64_t n,
                                                   const int64_t *ids, const float *gradients);
/* `dense` of each set of bags is the gradient of its result. */
VME_CUDA_API vme_cuda_status vme_cuda_update_bags(int count, int64_t bag_count, const vme_cuda_bags *bags,
                                                  const vme_cuda_rates *rates);
VME_CUDA_API vme_cuda_status vme_cuda_table_evict(vme_cuda_table *table, int64_t step, int64_t *evicted);

/* The contents of tables at one moment, copied to host memory when the snapshot begins; training continues afterwards.
 */
typedef struct vme_cuda_snapshot vme_cuda_snapshot;
VME_CUDA_API vme_cuda_status vme_cuda_snapshot_new(int count, vme_cuda_table *const *tables, int incremental,
                                                   vme_cuda_snapshot **snapshots);
VME_CUDA_API int64_t vme_cuda_snapshot_rows(const vme_cuda_snapshot *snapshot);
/* The next rows, at most `room`; *read 0: no more. values [room, dim], slots [room, slots * dim]. */
VME_CUDA_API vme_cuda_status vme_cuda_snapshot_read(vme_cuda_snapshot *snapshot, int64_t room, int64_t *keys,
                                                    int64_t *freqs, int64_t *versions, float *values, float *slots,
                                                    int64_t *read);
VME_CUDA_API vme_cuda_status vme_cuda_snapshot_waiting(vme_cuda_snapshot *snapshot, int64_t room, int64_t *keys,
                                                       int64_t *freqs, int64_t *versions, int64_t *read);
VME_CUDA_API void vme_cuda_snapshot_end(vme_cuda_snapshot *snapshot, int saved);
VME_CUDA_API vme_cuda_status vme_cuda_table_put(vme_cuda_table *table, int64_t n, const int64_t *keys,
                                                const int64_t *freqs, const int64_t *versions, const float *values,
                                                const float *slots);
VME_CUDA_API vme_cuda_status vme_cuda_table_put_waiting(vme_cuda_table *table, int64_t n, const int64_t *keys,
                                                        const int64_t *freqs, const int64_t *versions);

/* ---- networks */
/* A network's constants in GPU memory. */
typedef struct vme_cuda_weights vme_cuda_weights;
VME_CUDA_API vme_cuda_status vme_cuda_weights_new(vme_cuda_device *device, const void *bytes, int64_t size,
                                                  vme_cuda_weights **weights);
VME_CUDA_API void vme_cuda_weights_unref(vme_cuda_weights *weights);

typedef enum vme_cuda_space { VME_CUDA_ARENA, VME_CUDA_WEIGHTS, VME_CUDA_ABSENT } vme_cuda_space;
typedef struct vme_cuda_operand {
    int32_t space, reserved;
    int64_t offset;                 /* bytes */
    int64_t strides[VME_CUDA_RANK]; /* elements, for each dimension of the step's shape */
} vme_cuda_operand;

/* The result of an instruction for the current value x and an operand y. */
typedef enum vme_cuda_function {
    VME_CUDA_LOAD, /* y */
    VME_CUDA_ADD,
    VME_CUDA_SUBTRACT, /* x - y */
    VME_CUDA_SUBTRACT_FROM,
    VME_CUDA_MULTIPLY,
    VME_CUDA_DIVIDE, /* x / y */
    VME_CUDA_DIVIDE_BY,
    VME_CUDA_MAXIMUM,
    VME_CUDA_MINIMUM,
    VME_CUDA_CLIP, /* of x alone, from here on */
    VME_CUDA_NEGATIVE,
    VME_CUDA_ABSOLUTE,
    VME_CUDA_SQUARE,
    VME_CUDA_SQRT,
    VME_CUDA_RECIPROCAL,
    VME_CUDA_EXP,
    VME_CUDA_LOG,
    VME_CUDA_TANH,
    VME_CUDA_ERF,
    VME_CUDA_RELU,
    VME_CUDA_GELU,
    VME_CUDA_GELU_TANH,
    VME_CUDA_SIGMOID,
    VME_CUDA_SILU,
    VME_CUDA_MISH,
    VME_CUDA_HARD_SIGMOID,
    VME_CUDA_HARD_SWISH,
    VME_CUDA_FUNCTIONS
} vme_cuda_function;
typedef struct vme_cuda_instruction {
    int32_t function;
    int32_t operand; /* index of an operand, or -1 */
    float low, high; /* of VME_CUDA_CLIP */
} vme_cuda_instruction;

typedef enum vme_cuda_op {
    /* operand 0 = instructions on the others, element by element. `together` steps from this one on, none of which
     * reads another one's result, are one launch. */
    VME_CUDA_MAP,
    /* operand 0 [kept] = the reduction of the results of the first `before` instructions; the others apply to the
     * reduced value. operand 0's strides are 0 in dimensions whose bit in `reduced` is set, as are those of later
     * operands. */
    VME_CUDA_REDUCE,
    /* operand 0 [batch, m, n] = activation(a [batch, m, k] @ b [batch, k, n] + bias [n]); shape: batch, m, n, k.
     * Strides of operands: batch, row, column; either of the last two may be 1 in a and b. */
    VME_CUDA_PRODUCT,
    /* operand 0 [rows, n] = softmax(operand 1 * low + operand 2, which may be absent) of rows */
    VME_CUDA_SOFTMAX,
    VME_CUDA_OPS
} vme_cuda_op;
enum { VME_CUDA_SUM, VME_CUDA_PROD, VME_CUDA_MAX, VME_CUDA_MIN };
typedef struct vme_cuda_step {
    int32_t op, rank;
    int64_t shape[VME_CUDA_RANK];
    int32_t operand_count, instruction_count, before, together, reduction, reduced;
    float low;
    int32_t reserved;
    vme_cuda_operand operands[VME_CUDA_OPERANDS];
    vme_cuda_instruction instructions[VME_CUDA_INSTRUCTIONS];
} vme_cuda_step;

/* A lookup into columns of the arena. */
typedef struct vme_cuda_lookup {
    vme_cuda_table *table;
    int64_t offset, step; /* bytes in the arena; floats between the rows of bags */
    int64_t default_id;
    int32_t combiner, weighted;
    int64_t ids_room; /* maximum ids of a call */
} vme_cuda_lookup;

enum {
    VME_CUDA_GRAPH = 1,         /* steps are captured once, and launched as one graph */
    VME_CUDA_FUSED = 2,         /* bias and activation are part of products */
    VME_CUDA_MERGED_COPIES = 4, /* all inputs are one copy; otherwise one each */
    VME_CUDA_COPY_STREAM = 8,   /* copies to the GPU run on a stream that all plans of the device share */
};
typedef struct vme_cuda_ports { /* bytes of the arena; each port is a region, in this order from its start */
    int32_t inputs, outputs;
    const int64_t *input_offsets, *input_bytes, *output_offsets, *output_bytes;
} vme_cuda_ports;
typedef struct vme_cuda_plan vme_cuda_plan;
/* A network at one set of sizes: its arena, pinned buffers and graph. Lookups come before the steps. */
VME_CUDA_API vme_cuda_status vme_cuda_plan_new(vme_cuda_device *device, vme_cuda_stream *stream,
                                               vme_cuda_weights *weights, int flags, int64_t arena_bytes,
                                               const vme_cuda_ports *ports, int step_count, const vme_cuda_step *steps,
                                               int lookup_count, const vme_cuda_lookup *lookups, int64_t bag_count,
                                               vme_cuda_plan **plan);
VME_CUDA_API void vme_cuda_plan_unref(vme_cuda_plan *plan);
/* The pinned memory of an input, which may be written between runs. */
VME_CUDA_API void *vme_cuda_plan_input(vme_cuda_plan *plan, int number);
VME_CUDA_API int vme_cuda_plan_launches(const vme_cuda_plan *plan); /* kernels and products of a run */
/* inputs: one each, copied to the pinned memory; NULL: its present contents. bags: for each lookup; `dense` is not
 * read. */
VME_CUDA_API vme_cuda_status vme_cuda_plan_run(vme_cuda_plan *plan, const void *const *inputs, void *const *outputs,
                                               const vme_cuda_bags *bags);

#ifdef __cplusplus
}
#endif
#endif
