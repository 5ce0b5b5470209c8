// A profile, a cluster and what `plan` is asked for, in one file: what their readers let through is planned,
// and the plan keeps its promises, or it is refused. Far slower than the readers alone, and so a target of
// its own.

#include "base/error.h"
#include "base/json.h"
#include "partitioner/search/planner.h"
#include "test/fuzz/json_changes.h"
#include "test/fuzz/judge_files.h"
#include "test/fuzz/target.h"

#include <cstddef>
#include <cstdint>
#include <string>

namespace stagecraft::fuzz {
namespace {

struct Asked {
  Profile profile;
  Cluster cluster;
  PlanRequest request;
};

template <class V>
void describe(V& v, Asked& a) {
  v.required("profile", a.profile, "");
  v.required("cluster", a.cluster, "");
  v.required("schedule", a.request.schedule, "");
  v.optional("micro_batch_size", a.request.micro_batch_size, "");
  v.optional("micro_batches", a.request.micro_batches, "");
  v.optional("stages", a.request.stages, "");
  v.optional("virtual_stages", a.request.virtual_stages, "");
  v.optional("cuts", a.request.cuts, "");
  v.optional("replicate", a.request.replicate, "");
  v.optional("widths", a.request.widths, "");
  v.optional("recompute", a.request.recompute, "");
}

bool small(const Asked& asked) {
  return asked.profile.measurements.front().layers.size() <= 6 && asked.cluster.devices() <= 6 &&
         asked.request.micro_batches <= 6 && asked.request.virtual_stages.value_or(1) <= 6 &&
         asked.request.schedule.warmup_extra <= 6;
}

void require_kept_promises(const PlanResult& result, const Cluster& cluster) {
  const Plan& best = result.best.plan;
  require_reads_back(best);
  require(best.placement().world() <= cluster.devices(), "a plan's ranks are the cluster's devices");
  require(sane(best.predicted->step), "a plan's step is a time");
  if (const auto cap = cluster.usable_memory()) {
    for (const Bytes needed : best.predicted->memory) require(needed <= *cap, "a plan fits");
  }
  for (const PlanCandidate& other : result.others) {
    require(other.plan.predicted->step >= best.predicted->step, "no other plan is faster");
  }
  if (result.proof) {
    require(result.proof->bound <= best.predicted->step * (1 + 1e-9), "no bound above the plan's own step");
  }
}

}  // namespace
}  // namespace stagecraft::fuzz

FUZZ_MUTATOR(plan_request) { return stagecraft::fuzz::mutate_json(data, size, max_size, seed); }

FUZZ_TARGET(plan_request) {
  using namespace stagecraft;
  fuzz::Asked asked;
  try {
    asked = json::read<fuzz::Asked>(json::parse_text(std::string(data, data + size), "x"), {"x", ""});
    validate(asked.profile, "x");
    validate(asked.cluster, "x");
    fuzz::accepted();
    if (!fuzz::small(asked)) return 0;
    asked.request.search.work = 300;
    asked.request.search.cut_work = 300'000;
    fuzz::require_kept_promises(make_plan(asked.profile, asked.cluster, asked.request), asked.cluster);
  } catch (const InputError&) {    // not read, or not so many stages, not this option
  } catch (const RefusedError&) {  // does not fit
  }
  return 0;
}
