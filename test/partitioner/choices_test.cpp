#include "partitioner/advice/choices.h"

#include "schedules/generators/registry.h"
#include "test/partitioner/every_cuts.h"
#include "test/partitioner/example.h"
#include "test/partitioner/random_layout.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

#include <algorithm>

namespace stagecraft {
namespace {

using test::example;
using test::machine;

ChoiceRequest choice_request(std::vector<std::string> names, std::vector<Batching> batchings = {{8, 8}}) {
  ChoiceRequest request{.schedules = std::move(names), .batchings = std::move(batchings), .base = {}};
  request.base.search.work = 20'000;
  return request;
}

/// Steps that hardly differ are alike.
bool beats(const PlanCandidate& a, const PlanCandidate& b) {
  return a.step() <= b.step() * (1 + kSameStep) && a.memory() < b.memory();
}

}  // namespace

TEST_CASE("every schedule's plans are there, the fastest first", "[choices]") {
  const std::vector<std::string> names = schedule_names("all");
  const Choices choices = choose(example(), machine(3), choice_request(names, {{8, 8}, {4, 16}}));
  CHECK(choices.refused.empty());
  for (const std::string& name : names) {
    for (const std::int64_t size : {8, 4}) {
      INFO(name << " " << size);
      const auto found =
          std::find_if(choices.all.begin(), choices.all.end(), [&](const PlanCandidate& choice) {
            return choice.plan.schedule.name == name && choice.plan.micro_batch_size == size;
          });
      REQUIRE(found != choices.all.end());
      // As if it had been planned alone.
      PlanRequest alone = choice_request({}).base;
      alone.schedule.name = name;
      alone.micro_batch_size = size;
      alone.micro_batches = static_cast<int>(64 / size);
      CHECK(found->step() == make_plan(example(), machine(3), alone).best.plan.predicted->step);
    }
  }
  CHECK(std::is_sorted(choices.all.begin(), choices.all.end(),
                       [](const PlanCandidate& a, const PlanCandidate& b) { return a.step() < b.step(); }));
}

TEST_CASE("the front is what nothing beats in both time and memory", "[choices]") {
  const Choices choices =
      choose(example(), machine(4), choice_request(schedule_names("all"), {{8, 8}, {4, 16}}));
  const std::vector<const PlanCandidate*> front = choices.front();
  REQUIRE(front.size() > 1);
  for (const PlanCandidate& choice : choices.all) {
    const bool on_front = std::find(front.begin(), front.end(), &choice) != front.end();
    const bool beaten = std::any_of(choices.all.begin(), choices.all.end(),
                                    [&](const PlanCandidate& other) { return beats(other, choice); });
    if (on_front) CHECK_FALSE(beaten);
    // Of several that are alike one is enough.
    const bool alike = std::any_of(front.begin(), front.end(), [&](const PlanCandidate* other) {
      return other->step() <= choice.step() * (1 + kSameStep) && other->memory() == choice.memory();
    });
    if (!beaten) CHECK(alike);
  }
}

TEST_CASE("the front under falling caps is that of all cuts", "[choices]") {
  REQUIRE(rc::check([] {
    Profile profile;
    const int layers = *rc::gen::inRange(2, 6);
    profile.measurements = {test::random_measurement(layers)};
    Cluster cluster = machine(*rc::gen::inRange(1, 4));
    cluster.levels[0].link = Link{Seconds{*rc::gen::inRange(0, 3) / 4.0}, *rc::gen::element(4.0, 64.0)};
    ChoiceRequest request{.schedules = {"fill_drain", "1f1b", "zb_h1", "interleaved_1f1b"},
                          .batchings = {{1, *rc::gen::inRange(1, 6)}},
                          .falling_caps = true,
                          .base = {}};
    request.base.search.cut_work = 1'000'000'000;
    request.base.recompute = std::nullopt;
    const Choices choices = choose(profile, cluster, request);
    const std::vector<const PlanCandidate*> front = choices.front();
    for (std::size_t i = 1; i < front.size(); ++i) {
      RC_ASSERT(front[i]->step() > front[i - 1]->step() * (1 + kSameStep));
      RC_ASSERT(front[i]->memory() < front[i - 1]->memory());
    }
    std::size_t plans = 0;
    for (const std::string& name : request.schedules) {
      const Schedule& schedule = find_schedule(name);
      for (const Recompute recompute : {Recompute::none, Recompute::all_but_last, Recompute::all}) {
        for (int ranks = 1; ranks <= cluster.devices(); ++ranks) {
          test::every_cuts(layers, ranks * schedule.virtual_stages, [&](const std::vector<int>& cuts) {
            PlanRequest one = request.base;
            one.schedule.name = name;
            one.micro_batches = request.batchings.front().micro_batches;
            one.recompute = recompute;
            one.cuts = cuts;
            one.stages = static_cast<int>(cuts.size()) + 1;
            std::optional<Prediction> predicted;
            try {
              predicted = make_plan(profile, cluster, one).best.plan.predicted;
            } catch (const InputError&) {  // not so few micro-batches, says the schedule
              return;
            }
            ++plans;
            const Bytes memory = *std::max_element(predicted->memory.begin(), predicted->memory.end());
            // Up to the step of the caps, and up to what counts as one on the front.
            const double most = static_cast<double>(memory.value + 1) / (1 - choices.cap_step);
            RC_ASSERT(std::any_of(front.begin(), front.end(), [&](const PlanCandidate* choice) {
              return choice->step() <= predicted->step * (1 + 2 * kSameStep) &&
                     static_cast<double>(choice->memory().value) <= most;
            }));
          });
        }
      }
    }
    RC_CLASSIFY(front.size() > 2, "several on the front");
    RC_ASSERT(plans > 0U);
  }));
}

TEST_CASE("what does not fit is left out with its reason", "[choices]") {
  const Choices roomy = choose(example(), machine(2), choice_request({"fill_drain", "1f1b"}));
  // Less than fill-drain needs, enough for 1F1B.
  const auto least = [&](const char* name) {
    Bytes bytes{std::int64_t{1} << 60};
    for (const PlanCandidate& choice : roomy.all) {
      if (choice.plan.schedule.name == name) bytes = std::min(bytes, choice.memory());
    }
    return bytes;
  };
  REQUIRE(least("1f1b") < least("fill_drain"));
  const Choices tight = choose(example(), machine(2, least("1f1b")), choice_request({"fill_drain", "1f1b"}));
  for (const PlanCandidate& choice : tight.all) CHECK(choice.plan.schedule.name == "1f1b");
  REQUIRE(tight.refused.size() == 1);
  CHECK(tight.refused.front().rfind("fill_drain, 8 micro-batches of 8: nothing fits; ", 0) == 0);
  CHECK_THROWS_AS(choose(example(), machine(2, Bytes{1000}), choice_request({"fill_drain", "1f1b"})),
                  RefusedError);
}

TEST_CASE("an option that a schedule does not take is left out for it", "[choices]") {
  ChoiceRequest request = choice_request({"1f1b", "fill_drain", "pipedream"});
  request.base.schedule.warmup_extra = 1;
  request.base.schedule.agree_norm = true;
  const Choices choices = choose(example(), machine(2), request);
  CHECK(choices.refused.empty());
  for (const PlanCandidate& choice : choices.all) {
    const ScheduleChoice& schedule = choice.plan.schedule;
    CHECK(schedule.warmup_extra == (schedule.name == "1f1b" ? 1 : 0));
    CHECK(schedule.agree_norm == (schedule.name != "pipedream"));
  }
  request.base.stages = 99;
  CHECK_THROWS_AS(choose(example(), machine(2), request), InputError);
}

TEST_CASE("lists of schedules, and the batches of a profile", "[choices]") {
  CHECK(schedule_names("1f1b,zb_h1,1f1b") == std::vector<std::string>{"1f1b", "zb_h1"});
  const std::vector<std::string> all = schedule_names("all,pipedream");
  CHECK(all.back() == "pipedream");
  CHECK(std::find(all.begin(), all.end(), "2bw") == all.end());
  CHECK(std::find(all.begin(), all.end(), "auto") != all.end());
  CHECK_THROWS_AS(schedule_names("1f1b,zb_h9"), InputError);
  CHECK_THROWS_AS(schedule_names(""), InputError);

  Profile profile = example();
  std::vector<std::pair<std::int64_t, int>> made;
  for (const Batching& batching : batchings_of(profile, 60)) {
    made.emplace_back(batching.micro_batch_size, batching.micro_batches);
  }
  for (const auto& [size, count] : made) {
    CHECK(size * count >= 60);
    CHECK(size * (count - 1) < 60);
  }
  CHECK(made.size() == profile.measurements.size());
  CHECK(batchings_of(profile, profile.measurements.front().micro_batch).size() < 99);
  CHECK_THROWS_AS(batchings_of(profile, 1), InputError);
}

}  // namespace stagecraft
