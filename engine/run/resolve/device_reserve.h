#pragma once

// What a rank takes of its GPU beside the tensors that the memory proof counts. Estimates, from above where a
// source says how much; docs/measurements/2026-11-28-gpus.md has a card's own figures beside them:
//   workspaces     cuBLAS': 32 MiB per stream that computes (CUBLAS_WORKSPACE_CONFIG=:4096:8, which a run sets,
//                  and LibTorch's own default for newer GPUs); with recordings there are two such streams
//   communicators  NCCL's buffers: 9.4 MiB per block (4 + 4.9 + 0.5), of which a line has up to 4, a group 16
//                  (engine/device/cuda/nccl_backend.cpp), and what each communicator has besides: 64 and 192 MiB
//   recordings     memory that the forwards of other micro-batches in flight need in between (engine/core/stage_graphs.h)
//   norm           what it is added up in (engine/core/clipping.h): some numbers per gradient
//   blocks         what LibTorch's allocator rounds up and cannot give to others: a twentieth
// The context of CUDA and its kernels is not among them: it is there when the free memory is asked for.

#include "engine/run/resolve/setup.h"
#include "engine/transport/nccl/wiring.h"
#include "partitioner/plan/cluster.h"

namespace stagecraft {

struct DeviceReserve {
  Bytes workspaces, communicators, recordings, norm, blocks;
  [[nodiscard]] Bytes sum() const { return workspaces + communicators + recordings + norm + blocks; }
  bool operator==(const DeviceReserve&) const = default;
};

/// What the terms follow from.
struct DeviceUse {
  Bytes proved;                       ///< peak of the rank
  Bytes transient;                    ///< of that, within one action
  std::int64_t gradients = 0;         ///< of the rank's parameters; none where no norm is asked for
  std::int64_t largest_gradient = 0;  ///< numbers
  int in_flight = 0;                  ///< most micro-batches on one of its stages
  int lines = 0;                      ///< communicators of two, for transfers, and that of norms
  int groups = 0;                     ///< those for sums
  bool records = false;               ///< cuda.graphs
};
[[nodiscard]] DeviceReserve device_reserve(const DeviceUse& use);

/// The same before there is a plan, of a card with `available` bytes for one rank: what the planner leaves free. A rank
/// in the middle of a straight pipeline has four lines; those of groups, and what recordings of others hold, the plan
/// decides, and the comparison at the run's start has them.
[[nodiscard]] DeviceReserve reserve_before_planning(const RunConfig& config, const Model& model, int ranks,
                                                    Bytes available);

/// Of a cluster that nobody described: its devices have what a card of `available` bytes has for each of the
/// `ranks_per_card` on it, less that reserve.
void cap_at_card(Cluster& cluster, const RunConfig& config, const Model& model, Bytes available,
                 int ranks_per_card);

/// Of a rank, whose peak is `proved` with `transient` bytes within one action. `wiring`: of the run's programs,
/// without anything where ranks exchange no tensors by NCCL.
[[nodiscard]] DeviceUse device_use(const RunSetup& setup, Rank rank, Bytes proved, Bytes transient,
                                   const transport::NcclWiring& wiring);

}  // namespace stagecraft
