// An asynchronous plan beside the cuts near it: none of the same stages is faster that fits.

#include "partitioner/search/planner.h"
#include "test/partitioner/random_profile.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

namespace stagecraft {
namespace {

TEST_CASE("no cut of an asynchronous plan moves by a layer to a shorter step", "[planner]") {
  REQUIRE(rc::check("one cut or all", [] {
    Profile profile;
    profile.measurements = {test::random_measurement(*rc::gen::inRange(3, 9))};
    const Cluster cluster = test::random_cluster();
    PlanRequest request;
    request.schedule.name = *rc::gen::element(std::string("2bw"), std::string("pipedream"));
    request.micro_batches = *rc::gen::inRange(2, 6);
    request.replicate = *rc::gen::arbitrary<bool>();
    Plan best;
    try {
      best = make_plan(profile, cluster, request).best.plan;
    } catch (const RefusedError&) {
      RC_DISCARD("nothing fits");
    } catch (const InputError&) {
      RC_DISCARD("too short");
    }
    PlanRequest moved = request;
    moved.stages = static_cast<int>(best.stages.size());
    moved.widths.clear();
    for (const StagePlan& stage : best.stages) moved.widths.push_back(static_cast<int>(stage.ranks.size()));
    for (std::size_t cut = 0; cut < best.cuts().size(); ++cut) {
      for (const int by : {1, -1}) {
        moved.cuts = best.cuts();
        moved.cuts[cut] += by;
        try {
          const Plan other = make_plan(profile, cluster, moved).best.plan;
          if (other.placement() != best.placement()) continue;
          RC_ASSERT(best.predicted->step.value <= other.predicted->step.value * (1 + 1e-9));
        } catch (const InputError&) {  // an empty stage
        } catch (const RefusedError&) {
        }
      }
    }
  }));
}

}  // namespace
}  // namespace stagecraft
