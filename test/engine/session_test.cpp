#include "engine/session/session.h"

#include "base/error.h"
#include "base/json.h"
#include "engine/core/overflow.h"
#include "engine/session/rank_crew.h"
#include "test/support/catch.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/sin.h>

#include <atomic>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

using namespace stagecraft;

namespace {

constexpr std::int64_t kSamples = 8;

Json config(int stages, const std::string& schedule = "1f1b") {
  return Json::parse(R"({
    "model": {"family": "mlp", "hidden": [6, 6, 6]},
    "data": {"type": "given", "inputs": "x", "shuffle": false, "classes": 3,
             "fields": [{"name": "x", "shape": [4]}, {"name": "targets", "dtype": "int64"}]},
    "loss": {"type": "cross_entropy"},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "train_steps": 1000, "threads_per_rank": 1,
    "profiler": {"repeats": 1, "warmup_ms": 0},
    "pipeline": {"schedule": ")" +
                     schedule + R"(", "stages": )" + std::to_string(stages) + "}}");
}

GivenTensors batch(std::int64_t number, std::int64_t samples = kSamples) {
  const at::Tensor all = at::arange(samples * 4, at::kFloat) + static_cast<double>(number);
  return {{"x", at::sin(all).view({samples, 4})},
          {"targets", at::remainder(at::arange(samples, at::kLong) + number, 3)}};
}

const Session::Meanwhile kNothing = [] {};

Session made(int stages, const std::string& schedule = "1f1b") {
  return Session(config(stages, schedule), batch(0), {}, "", kNothing);
}

double loss_of(Session& session, const GivenTensors& given) {
  return session.step(given, {}, std::nullopt, kNothing).report.loss;
}

std::string refused(Session& session, const GivenTensors& given) {
  try {
    (void)loss_of(session, given);
    return "";
  } catch (const InputError& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("a crew carries out tasks together, and its first error is the one that is thrown", "[session]") {
  std::atomic<int> told = 0;
  RankCrew crew(3, [&](std::size_t place, const std::string&, const std::exception_ptr&) {
    told += place == 1 ? 1 : 0;
  });
  std::atomic<int> made = 0;
  for (int round = 0; round < 50; ++round)
    crew.run(
        "a task", [&](std::size_t) { ++made; }, [] {});
  CHECK(made == 150);
  const auto one_fails = [&](std::size_t place) {
    if (place == 1) throw std::runtime_error("the second");
    while (told == 0) std::this_thread::yield();
    throw std::runtime_error("heard of it");
  };
  CHECK_THROWS_WITH(crew.run("a task", one_fails, [] {}), "the second");
  crew.run(
      "a task", [&](std::size_t) { ++made; }, [] {});
  CHECK(made == 153);
}

TEST_CASE("sessions of one and of several stages make the same steps", "[session]") {
  Session one = made(1), two = made(2), other = made(2, "zb_h1");
  for (std::int64_t number = 0; number < 4; ++number) {
    const double loss = loss_of(one, batch(number));
    CHECK(loss_of(two, batch(number)) == loss);
    CHECK(loss_of(other, batch(number)) == loss);
  }
  const double shorter = loss_of(one, batch(4, 5));
  CHECK(loss_of(two, batch(4, 5)) == shorter);
  const SessionStep uneven = one.step(batch(5, 4), {1, 2, 1}, 0.5, kNothing);
  CHECK(uneven.report.learning_rate == 0.5);
  CHECK(two.step(batch(5, 4), {1, 2, 1}, 0.5, kNothing).report.loss == uneven.report.loss);
  CHECK(two.evaluate(batch(6), {}, kNothing).report.loss == one.evaluate(batch(6), {}, kNothing).report.loss);
  const auto ours = two.state(kNothing), theirs = one.state(kNothing);
  REQUIRE(ours.size() == theirs.size());
  for (const auto& [name, tensor] : theirs) CHECK(tensor.equal(ours.at(name)));
  CHECK(one.steps() == 6);
}

TEST_CASE("a refused batch leaves a session as it was", "[session]") {
  Session session = made(2), twin = made(2);
  GivenTensors wrong = batch(0);
  wrong["targets"] = wrong["targets"] + 5;
  CHECK_FALSE(refused(session, wrong).empty());
  wrong = batch(0);
  wrong.erase("targets");
  CHECK(refused(session, wrong) == "the batch: \"targets\" is missing; the batch has x");
  wrong = batch(0);
  wrong["number"] = wrong["x"];
  CHECK(refused(session, wrong) ==
        "the batch: \"number\" is nothing that the pipeline reads; it reads x, targets");
  wrong = batch(0);
  wrong["x"] = at::full({kSamples, 4}, std::numeric_limits<double>::quiet_NaN());
  CHECK_FALSE(refused(session, wrong).empty());
  CHECK(session.steps() == 0);
  CHECK(loss_of(session, batch(1)) == loss_of(twin, batch(1)));
}

TEST_CASE("weights are set by their names", "[session]") {
  Session first = made(2), second = made(1);
  (void)loss_of(first, batch(0));
  second.set_state(first.state(kNothing), kNothing);
  CHECK(second.evaluate(batch(1), {}, kNothing).report.loss ==
        first.evaluate(batch(1), {}, kNothing).report.loss);
  auto state = first.state(kNothing);
  state.erase(state.begin());
  CHECK_THROWS_AS(second.set_state(state, kNothing), InputError);
}

TEST_CASE("a crew's tasks follow each other on each rank, and one behind a failed one is left out",
          "[session]") {
  std::atomic<int> told = 0;
  std::string what;
  RankCrew crew(2, [&](std::size_t, const std::string& doing, const std::exception_ptr&) {
    what = doing;
    ++told;
  });
  std::atomic<bool> go = false;
  std::atomic<int> first = 0, second = 0, third = 0;
  const auto one = crew.begin("the first", [&](std::size_t place) {
    while (place == 0 && !go) std::this_thread::yield();
    ++first;
  });
  const auto two = crew.begin("the second", [&](std::size_t place) {
    ++second;
    if (place == 1) throw std::runtime_error("on rank 1");
  });
  const auto three = crew.begin("the third", [&](std::size_t) { ++third; });
  while (told == 0) std::this_thread::yield();  // rank 1 is a task ahead of rank 0
  CHECK(what == "the second");
  CHECK(first == 1);
  CHECK_FALSE(one->over());
  go = true;
  one->wait([] {});
  CHECK_THROWS_WITH(two->wait([] {}), "on rank 1");
  CHECK_THROWS_WITH(three->wait([] {}), "on rank 1");
  CHECK_THROWS_WITH(three->wait([] {}), "on rank 1");
  CHECK(first == 2);
  CHECK(second == 1);
  CHECK(third == 0);
  crew.run(
      "the fourth", [&](std::size_t) { ++third; }, [] {});
  CHECK(third == 2);
}

TEST_CASE(
    "a task is carried out by all ranks, also where one of them fails in the next before another begins",
    "[session]") {
  std::atomic<int> told = 0;
  RankCrew crew(2, [&](std::size_t, const std::string&, const std::exception_ptr&) { ++told; });
  std::atomic<bool> go = false;
  std::atomic<int> before = 0;
  const auto held = crew.begin("what holds rank 0", [&](std::size_t place) {
    while (place == 0 && !go) std::this_thread::yield();
  });
  const auto one = crew.begin("the first", [&](std::size_t) { ++before; });
  const auto two = crew.begin("the second", [&](std::size_t place) {
    if (place == 1) throw std::runtime_error("on rank 1");
  });
  while (told == 0) std::this_thread::yield();
  go = true;
  held->wait([] {});
  one->wait([] {});
  CHECK(before == 2);
  CHECK_THROWS_WITH(two->wait([] {}), "on rank 1");
}

namespace {

std::shared_ptr<StepUnderWay> begun(Session& session, const GivenTensors& given) {
  return session.begin(SegmentKind::train, given, {}, std::nullopt, kNothing);
}

}  // namespace

TEST_CASE("steps that are under way have the bits of steps one by one, whatever is written to their batches",
          "[session]") {
  for (const char* const schedule : {"1f1b", "fill_drain", "zb_h1"}) {
    Session ahead = made(2, schedule), one_by_one = made(2, schedule);
    std::vector<double> expected, found;
    std::vector<std::shared_ptr<StepUnderWay>> steps;
    GivenTensors buffer = batch(0);
    for (std::int64_t number = 0; number < 20; ++number) {
      const std::int64_t samples =
          number % 7 == 6 ? 5 : kSamples;  // a shape of its own, which ends what is under way
      GivenTensors given = batch(number, samples);
      expected.push_back(loss_of(one_by_one, given));
      if (samples == kSamples) {
        for (auto& [name, tensor] : buffer) tensor.copy_(given.at(name));
      }
      steps.push_back(begun(ahead, samples == kSamples ? buffer : given));
      for (auto& [name, tensor] : buffer) tensor.zero_();
    }
    for (const auto& step : steps) found.push_back(step->result(kNothing).report.loss);
    CHECK(found == expected);
    for (const auto& [name, tensor] : one_by_one.state(kNothing)) {
      CHECK(tensor.equal(ahead.state(kNothing).at(name)));
    }
  }
}

TEST_CASE("an error of a step under way is heard once, where it is asked or at the next call", "[session]") {
  Session session = made(2), twin = made(2);
  const auto sound = session.state(kNothing);
  for (Session* const its : {&session, &twin}) {  // weights that overflow
    (void)its->step(batch(0), {}, 1e30, kNothing);
  }
  SECTION("at the next call") {
    const auto bad = begun(session, batch(1));
    CHECK_THROWS_AS(session.settle(kNothing), NotFiniteError);
    CHECK_THROWS_AS(bad->result(kNothing), NotFiniteError);
  }
  SECTION("where it is asked") {
    const auto bad = begun(session, batch(1));
    CHECK_THROWS_AS(bad->result(kNothing), NotFiniteError);
    bad->mark_heard();
  }
  SECTION("one that was begun behind it was not made") {
    const auto bad = begun(session, batch(1)), behind = begun(session, batch(1));
    CHECK_THROWS_AS(behind->result(kNothing), NotFiniteError);
    behind->mark_heard();
  }
  CHECK_NOTHROW(session.settle(kNothing));
  CHECK(session.steps() == 1);
  for (Session* const its : {&session, &twin}) its->set_state(sound, kNothing);
  for (std::int64_t number = 1; number < 4; ++number) {
    CHECK(loss_of(session, batch(number)) == loss_of(twin, batch(number)));
  }
}

TEST_CASE("a step outlives its session", "[session]") {
  std::shared_ptr<StepUnderWay> step;
  double expected = 0;
  {
    Session session = made(2), twin = made(2);
    expected = loss_of(twin, batch(0));
    step = begun(session, batch(0));
  }
  CHECK(step->over());
  CHECK(step->result(kNothing).report.loss == expected);
}
