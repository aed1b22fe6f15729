/* Operators over pairs: two fields of the same events, or events in quick succession. */
#ifndef VMF_PAIRS_H
#define VMF_PAIRS_H

#include "core/operators.h"

vmf_operator vmf_co_occurrence, vmf_co_occurrence_share;

/* Over the events that have a value in both fields. */
vmf_operator vmf_weighted_sum, vmf_weighted_mean, vmf_covariance, vmf_correlation, vmf_slope_over, vmf_sum_ratio,
    vmf_pairs, vmf_pair_mode_count, vmf_pair_mode_share, vmf_mutual_information;

#endif
