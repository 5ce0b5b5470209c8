#include "engine/records/report/measured_stages.h"

namespace stagecraft {
namespace {

Seconds median_of(const RunReport& report, StageId stage, const char* kind) {
  for (const ActionRow& row : report.actions) {
    if (row.stage == stage && row.kind == kind) return row.p50;
  }
  return Seconds{};
}

}  // namespace

std::vector<MeasuredStage> measured_stages(const RunReport& report) {
  std::vector<MeasuredStage> measured;
  for (int s = 0; s < report.stages; ++s) {
    const StageId stage{s};
    measured.push_back({.forward = median_of(report, stage, "forward"),
                        .backward = median_of(report, stage, "backward") +
                                    median_of(report, stage, "backward input") +
                                    median_of(report, stage, "backward weight"),
                        .step = median_of(report, stage, "optimizer")});
  }
  return measured;
}

}  // namespace stagecraft
