#pragma once

// Programs and costs that the simulator's tests share.

#include "schedules/generators/registry.h"
#include "schedules/generators/schedule.h"
#include "schedules/lowering/lowering.h"
#include "schedules/simulator/simulator.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft::test {

inline constexpr double kFree = std::numeric_limits<double>::infinity();

inline Network one_level(int ranks, double latency, double bytes_per_second) {
  return Network{{NetworkLevel{ranks, Link{Seconds{latency}, bytes_per_second}}}};
}

/// Stages that all take F, B (in two halves) and S seconds; sizes in powers of two keep sums exact.
inline CostTable even_costs(int stages, double f, double b, double s) {
  CostTable costs;
  StageCosts stage;
  stage.forward = Seconds{f};
  stage.backward_input = Seconds{b / 2};
  stage.backward_weight = Seconds{b / 2};
  stage.step = Seconds{s};
  costs.stages.assign(static_cast<std::size_t>(stages), stage);
  costs.network = one_level(std::max(stages, 8), 0, kFree);
  return costs;
}

inline LoweredProgram program_of(const std::string& schedule, int stages, std::vector<int> group_sizes,
                                 bool clip = false, const LoweringOptions& options = {}) {
  ScheduleRequest request;
  request.placement = Placement::straight(stages);
  request.group_sizes = std::move(group_sizes);
  request.clip = clip;
  return lower(find_schedule(schedule).generate(request), options);
}

/// Hand-made programs, to pin down single rules.
class Builder {
 public:
  explicit Builder(int ranks) {
    program_.placement = Placement::straight(ranks);
    program_.group_sizes = {8};
    program_.ranks.resize(static_cast<std::size_t>(ranks));
    program_.slots.resize(static_cast<std::size_t>(ranks));
  }
  Builder& compute(int rank, Op op, int micro_batch) {
    Action action;
    action.op = op;
    action.stage = StageId{rank};
    action.micro_batch = MicroBatch{micro_batch};
    action.group = Group{0};
    return add(rank, action);
  }
  Builder& transfer(int rank, Op op, int from, int to, int micro_batch) {
    Action action;
    action.op = op;
    action.tag =
        Tag{from < to ? Payload::activation : Payload::gradient, StageId{from}, StageId{to}, micro_batch, 0};
    return add(rank, action);
  }
  Builder& collective(int rank, Op op, int stage) {
    Action action;
    action.op = op;
    action.stage = StageId{stage};
    action.group = Group{0};
    return add(rank, action);
  }
  LoweredProgram program_;

 private:
  Builder& add(int rank, const Action& action) {
    program_.ranks[static_cast<std::size_t>(rank)].push_back(action);
    return *this;
  }
};

/// 1 s forwards, 2 s backwards, boundaries of 8 bytes over links of 2 bytes/s and 1 s latency: 5 s a
/// transfer.
inline CostTable slow_links(int stages) {
  CostTable costs = even_costs(stages, 1, 2, 0);
  for (StageCosts& stage : costs.stages) {
    stage.input = Bytes{8};
    stage.output = Bytes{8};
  }
  costs.network = one_level(stages, 1, 2);
  return costs;
}

}  // namespace stagecraft::test
