#pragma once

// What passes from one segment to the next beside the stages. A worker has one for its run; a rehearsal has
// another one, on a transport of its own, of which nothing remains.

#include "base/core_share.h"
#include "engine/core/boundaries.h"
#include "engine/core/deferred_reports.h"
#include "engine/core/gradient_sums.h"
#include "engine/core/recorder.h"
#include "engine/core/stage.h"
#include "engine/core/staged_model.h"
#include "engine/core/step_gate.h"
#include "engine/core/worker.h"
#include "models/data/batch_source.h"

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace stagecraft {

/// What the rank's stages load: apart even on one rank, so that each micro-batch's part is read when its
/// stage comes to it.
using BatchSources = std::map<StageId, std::unique_ptr<BatchSource>>;

/// Updates of a rank's stages in one segment, skipped ones among them.
struct UpdateCount {
  int begun = 0;
  int made = 0;
};

struct RunState {
  /// All arguments outlive this. `scale`: of the loss, none: it is not scaled.
  RunState(const StagedModel& model, std::vector<Stage>& stages, const Placement& placement,
           Transport& its_transport, WorkerOptions its_options, std::optional<LossScale> scale)
      : transport(its_transport),
        options(std::move(its_options)),
        boundaries(model, placement, options.micro_batch_size, options.device, transport,
                   options.poison_released_slots),
        recorder(transport.rank(), options.record_steps, options.device),
        sums(model, stages, transport, options.device, recorder),
        gate(model, stages, transport, options, scale),
        reports([this] { transport.progress(); }) {}
  RunState(const RunState&) = delete;
  RunState& operator=(const RunState&) = delete;

  /// Waits for all that a device still owes: answers first, then the reports that need them.
  void settle() {
    gate.settle();
    reports.deliver_all();
  }

  Transport& transport;
  const WorkerOptions options;
  Boundaries boundaries;
  Recorder recorder;
  GradientSums sums;
  StepGate gate;
  DeferredReports reports;
  std::map<SegmentKind, BatchSources> data;  ///< made when first needed
  UpdateCount updates;                       ///< of the segment that runs, or ran last
  CoreShare core_share;                      ///< of training's layers and updates, on the CPU
};

}  // namespace stagecraft
