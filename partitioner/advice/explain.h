#pragma once

// Why a plan is as it is: what happens to its step when a cut moves by a layer, what the step is made of, and
// what other devices, memory, links or micro-batches would bring. docs/guides/explaining_plans.md has an example.
//
// Moved cuts and tenths are priced by simulating the plan's own program with other costs; what-ifs are
// planned again (what_if.h).

#include "partitioner/advice/what_if.h"
#include "partitioner/plan/plan_pricer.h"
#include "partitioner/search/planner.h"

#include <optional>
#include <vector>

namespace stagecraft {

/// What a rank lacks.
struct MemoryMiss {
  Rank rank;
  std::vector<StageId> stages;
  Bytes needs, has;
};

void describe(auto& v, MemoryMiss& m) {
  v.required("rank", m.rank, "that lacks most");
  v.required("stages", m.stages, "on it");
  v.required("needs_bytes", m.needs, "proven peak");
  v.required("has_bytes", m.has, "of a device, the reserve taken off");
}

/// The plan with one cut elsewhere.
struct MovedCut {
  int layer = 0;
  Bytes crossing;
  Seconds step;
  double change = 0;
  std::optional<ChainPart> grown;
  bool busiest = false;  ///< the stage of `grown`
  std::optional<MemoryMiss> misses;
};

void describe(auto& v, MovedCut& m) {
  v.required("layer", m.layer, "the cut lies before it");
  v.required("crossing_bytes", m.crossing, "of a micro-batch, each way");
  v.required("step_ms", m.step, "simulated, all else as it is");
  v.required("change", m.change, "of the step, as a share of the plan's");
  v.optional("grown", m.grown, "what the longest chain has most more of, with how much; absent: of nothing");
  v.optional("busiest", m.busiest, "no stage computes longer a micro-batch then");
  v.optional("misses", m.misses, "it does not fit");
}

struct CutExplanation {
  int layer = 0;
  StageId stage;
  Bytes crossing;
  std::optional<MovedCut> earlier, later;
};

void describe(auto& v, CutExplanation& c) {
  v.required("layer", c.layer, "the cut lies before it");
  v.required("stage", c.stage, "that begins there");
  v.required("crossing_bytes", c.crossing, "of a micro-batch, each way");
  v.optional("earlier", c.earlier, "moved by a layer; absent: a stage would have none");
  v.optional("later", c.later, "likewise");
}

/// What the step would be with one thing a tenth faster, the program as it is.
struct Sensitivity {
  std::optional<StageId> stage;  ///< its compute
  std::optional<int> level;      ///< or the links of one level: latency and bandwidth
  double change = 0;             ///< of the step, as a share of it: negative where it becomes shorter
};

void describe(auto& v, Sensitivity& t) {
  v.optional("stage", t.stage, "whose compute is a tenth faster");
  v.optional("level", t.level, "or whose links, of the cluster's levels, innermost 0");
  v.required("change", t.change, "of the step, as a share of it");
}

/// Where the mean rank's time goes in a step.
struct RankTime {
  Seconds busy;
  LostTime lost;
};

void describe(auto& v, RankTime& t) {
  v.required("busy_ms", t.busy, "computes");
  v.required("imbalance_ms", t.lost.imbalance, "idle for others' work beyond the order's price");
  v.required("dependency_ms", t.lost.dependency,
             "idle for others' work, as with equal ranks: the order's price");
  v.required("exposed_transfer_ms", t.lost.exposed_transfer, "idle for a transfer to come");
  v.required("blocked_send_ms", t.lost.blocked_send, "idle for a transfer to be over");
  v.required("memory_ms", t.lost.memory, "idle for a transfer that lacked a slot");
  v.required("barrier_ms", t.lost.barrier, "idle in a collective");
}

/// A layer that no other one of a model of equal blocks is like: an embedding, a head, a loss.
struct LoneLayer {
  int layer = 0;
  Seconds compute;   ///< forward and backward of a micro-batch
  double share = 0;  ///< of all layers' compute
  Bytes parameters;
};

void describe(auto& v, LoneLayer& l) {
  v.required("layer", l.layer, "its index");
  v.required("compute_ms", l.compute, "forward and backward of a micro-batch");
  v.required("share", l.share, "of all layers' compute");
  v.required("parameter_bytes", l.parameters, "weights");
}

struct Explanation {
  Seconds step;                        ///< the plan's, as all changes are shares of
  std::optional<Seconds> agreement;    ///< agreement_cost()
  std::vector<LoneLayer> lone_layers;  ///< in model order, those that weigh anything
  std::vector<CutExplanation> cuts;
  int cuts_left_out = 0;            ///< for want of budget: those beside the stages with least to do
  std::vector<ChainPart> chain;     ///< largest first
  std::optional<RankTime> rank;     ///< none for programs that are too long to follow
  std::vector<Sensitivity> tenths;  ///< of the stages with most on the chain, and of every level
  std::vector<WhatIf> what_if;
};

void describe(auto& v, Explanation& e) {
  v.required("step_ms", e.step, "of the plan");
  v.optional("agreement_ms", e.agreement,
             "of it, because all ranks agree on the gradient's norm; absent: they do not");
  v.required("lone_layers", e.lone_layers, "what no other layer is like, where most layers are equal blocks");
  v.required("cuts", e.cuts, "each with what moving it by a layer does");
  v.optional("cuts_left_out", e.cuts_left_out, "for want of budget");
  v.required(
      "chain", e.chain,
      "what the step consists of, one thing after the other; asynchronous: the mean step of a segment");
  v.optional("rank", e.rank, "what the mean rank does meanwhile; absent: too long a program");
  v.required("tenths", e.tenths, "a tenth faster each, the plan as it is");
  v.required("what_if", e.what_if, "planned again");
}

/// Of the `result` of a request. `progress` hears which what-if is being planned. Takes about as long as planning did: the budget of the request, once more, is shared by all questions.
[[nodiscard]] Explanation explain(const Profile& profile, const Cluster& cluster, const PlanResult& result,
                                  const PlanRequest& request, const WhatIfProgress& progress = {});

}  // namespace stagecraft
