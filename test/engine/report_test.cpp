// The report's arithmetic on a timeline made by hand: two equal steps with a checkpoint between them.

#include "engine/records/report/report.h"

#include "base/json.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <algorithm>
#include <ctime>

namespace stagecraft {
namespace {

constexpr double kGap = 100;  // ms between the steps

class HandMade {
 public:
  HandMade() {
    for (const int step : {0, 1}) {
      const double from = step * (9.5 + kGap);
      at(0, step, from, {.op = Op::forward, .stage = StageId{0}, .micro_batch = MicroBatch{0}}, 0, 1);
      at(0, step, from, {.op = Op::start_send, .tag = activation(0)}, 1, 1.1);
      at(0, step, from, {.op = Op::forward, .stage = StageId{0}, .micro_batch = MicroBatch{1}}, 1.1, 2.1);
      at(0, step, from, {.op = Op::wait_receive, .tag = gradient(0)}, 2.1, 4);
      at(0, step, from, {.op = Op::backward, .stage = StageId{0}, .micro_batch = MicroBatch{0}}, 4, 6);
      at(0, step, from, {.op = Op::wait_receive, .tag = gradient(1)}, 6, 7);
      at(0, step, from, {.op = Op::backward, .stage = StageId{0}, .micro_batch = MicroBatch{1}}, 7, 9);
      at(0, step, from, {.op = Op::step, .stage = StageId{0}, .group = Group{0}}, 9, 9.5);
      // Before the second step rank 1 waits through the checkpoint: that is no time of the step's.
      at(1, step, from, {.op = Op::wait_receive, .tag = activation(0)}, step == 0 ? 0 : -kGap / 2, 1.2);
      at(1, step, from, {.op = Op::forward, .stage = StageId{1}, .micro_batch = MicroBatch{0}}, 1.2, 2.2);
      at(1, step, from, {.op = Op::backward, .stage = StageId{1}, .micro_batch = MicroBatch{0}}, 2.2, 4);
      at(1, step, from, {.op = Op::forward, .stage = StageId{1}, .micro_batch = MicroBatch{1}}, 4, 5);
      at(1, step, from, {.op = Op::backward, .stage = StageId{1}, .micro_batch = MicroBatch{1}}, 5, 7);
      at(1, step, from, {.op = Op::step, .stage = StageId{1}, .group = Group{0}}, 7, 7.5);
    }
    run_.plan.stages = {{0, 1, {Rank{0}}}, {1, 2, {Rank{1}}}};
    run_.plan.micro_batches = 2;
    StageCosts costs;
    costs.forward = ms(1);
    costs.backward_input = ms(1.5);
    costs.backward_weight = ms(1);
    costs.step = ms(0.5);
    run_.plan.costs = CostTable{{costs, costs}, {{{2, {Seconds{0}, 1e9}}}}, {}};
    run_.plan.predicted = predict(run_.plan);
    run_.summary.steps = 2;
    run_.summary.measured_steps = 1;
    run_.summary.step = {ms(9.5), ms(9.6), ms(0.1)};
    run_.summary.peak = {Bytes{90}, Bytes{80}};
    run_.summary.proved_peak = {Bytes{100}, Bytes{80}};
  }
  [[nodiscard]] RunReport report() const { return make_report(run_); }
  /// Steps of a forward of 10 ms on rank 0, each so many ms after the last one's begin. Rank 1 waits from the
  /// middle of the first to the middle of the last.
  template <class Distance>
  [[nodiscard]] RunReport report_of_steps(int steps, const Distance& distance) {
    run_.timeline.events.clear();
    double from = 0;
    for (int step = 0; step < steps; ++step) {
      if (step > 0) from += distance(step);
      at(0, step, from, {.op = Op::forward, .stage = StageId{0}, .micro_batch = MicroBatch{0}}, 0, 10);
      at(0, step, from, {.op = Op::start_send, .tag = activation(0)}, 10, 10.1);
    }
    at(1, 0, 0, {.op = Op::wait_receive, .tag = activation(0)}, 5, from + 5);
    return make_report(run_);
  }
  /// Another plan, of which nothing was measured.
  [[nodiscard]] RunReport report_of(const char* schedule, int stages, int ranks) {
    run_.timeline.events.clear();
    run_.plan.schedule.name = schedule;
    run_.plan.micro_batches = 4;
    run_.plan.stages.clear();
    run_.plan.costs->stages.resize(static_cast<std::size_t>(stages), run_.plan.costs->stages.front());
    for (int s = 0; s < stages; ++s) run_.plan.stages.push_back({s, s + 1, {Rank{s % ranks}}});
    run_.plan.predicted = predict(run_.plan);
    return make_report(run_);
  }

  [[nodiscard]] RunReport without_rank(int rank) {
    std::erase_if(run_.timeline.events, [&](const Event& event) { return event.rank == Rank{rank}; });
    return make_report(run_);
  }
  [[nodiscard]] RunReport without_steps() {
    run_.summary.measured_steps = 0;
    return make_report(run_);
  }
  [[nodiscard]] RunReport stopped_by(int signal) {
    run_.summary.stopped_by_signal = signal;
    return make_report(run_);
  }
  [[nodiscard]] RunReport on_cards(std::vector<CardUse> cards) {
    run_.summary.cards = std::move(cards);
    return make_report(run_);
  }
  [[nodiscard]] RunReport without_memory() {
    run_.summary.peak.clear();
    return make_report(run_);
  }

 private:
  static Seconds ms(double value) { return Seconds{value / 1e3}; }
  static Tag activation(int mb) { return Tag::activation(StageId{0}, MicroBatch{mb}); }
  static Tag gradient(int mb) { return Tag::gradient(StageId{1}, MicroBatch{mb}); }
  void at(int rank, int step, double from, const Action& action, double begin, double end) {
    run_.timeline.events.push_back(
        {Rank{rank}, Event::Lane::compute, action, ms(from + begin), ms(from + end), step});
  }

  RunFiles run_;
};

}  // namespace

TEST_CASE("every moment of a step is somebody's, and what lies between steps is nobody's", "[report]") {
  const RunReport report = HandMade().report();
  const auto is = [](const std::optional<Seconds>& time, double ms) {
    return time.value().value * 1e3 == Approx(ms).margin(1e-9);
  };
  CHECK(report.timeline_steps == 2);
  REQUIRE(report.stage_rows.size() == 2);
  const StageRow& first = report.stage_rows[0];
  CHECK(is(first.forward.measured, 2));
  CHECK(is(first.backward.measured, 4));
  CHECK(is(first.optimizer.measured, 0.5));
  CHECK(is(first.send.measured, 0.1));
  CHECK(is(first.wait_gradient.measured, 2.9));
  CHECK(is(first.wait_activation.measured, 0));
  CHECK(is(first.idle.measured, 0));
  const StageRow& last = report.stage_rows[1];
  CHECK(is(last.forward.measured, 2));
  CHECK(is(last.backward.measured, 3.8));
  CHECK(is(last.wait_activation.measured, 1.2));
  CHECK(is(last.idle.measured, 2));
  // Busy: 6.5 and 6.3 of 9.5 ms.
  CHECK(report.bubble.value() == Approx(1 - 12.8 / 19));
}

TEST_CASE("a wait through several steps counts for what lies in them", "[report]") {
  const RunReport report = HandMade().report_of_steps(3, [](int) { return 100.0; });
  // Steps of 10 ms at 0, 100 and 200 ms; rank 1 waits from 5 to 205 ms.
  CHECK(report.stage_rows[1].wait_activation.measured->value * 3e3 == Approx(5 + 10 + 5));
}

TEST_CASE("a timeline of many steps is reported in a time that goes by their number", "[report]") {
  const std::clock_t begin = std::clock();
  // With a break behind each: 200,000 events, 100,000 stretches.
  CHECK(HandMade()
            .report_of_steps(100'000, [](int step) { return step % 2 == 0 ? 50.0 : 100.0; })
            .timeline_steps == 100'000);
  CHECK(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < 5);
}

TEST_CASE("predicted beside measured, for stages, single actions and the step", "[report]") {
  const RunReport report = HandMade().report();
  const StageRow& first = report.stage_rows[0];
  CHECK(first.forward.error().value() == Approx(0).margin(1e-9));
  CHECK(first.backward.error().value() == Approx(4.0 / 5 - 1));
  CHECK(first.optimizer.predicted->value == Approx(0.5e-3));
  // Rank 1: F0 1-2, B0 -4.5, F1 -5.5, B1 -8, step; rank 0 waits for its gradients: B0 4.5-7, B1 8-10.5, step
  // -11.
  CHECK(report.step.predicted->value == Approx(11e-3));
  CHECK(report.step.error().value() == Approx(9.5 / 11 - 1));
  CHECK(report.bubble_predicted.value() == Approx(1 - 7.5 / 11));
  const auto action = std::find_if(report.actions.begin(), report.actions.end(), [](const ActionRow& row) {
    return row.stage == StageId{1} && row.kind == "backward";
  });
  REQUIRE(action != report.actions.end());
  CHECK(action->count == 4);
  CHECK(action->p50.value == Approx(1.9e-3));
  CHECK(action->p99.value == Approx(2e-3));
  CHECK(action->predicted->value == Approx(2.5e-3));
  REQUIRE(report.memory.size() == 2);
  CHECK(report.memory[0].measured == Bytes{90});
  CHECK(report.memory[0].proved == Bytes{100});
}

TEST_CASE("what is predicted of a rank is told stage by stage", "[report]") {
  const RunReport report = HandMade().report_of("interleaved_1f1b", 4, 2);
  REQUIRE(report.stage_rows.size() == 4);
  Seconds accounted;
  for (const StageRow& row : report.stage_rows) {
    INFO(row.stage.value);
    CHECK(row.forward.predicted->value == Approx(4e-3));
    CHECK(row.backward.predicted->value == Approx(10e-3));
    CHECK(row.optimizer.predicted->value == Approx(0.5e-3));
    if (row.rank != Rank{1}) continue;  // rank 0 waits for the loss too
    for (const Compared* part :
         {&row.forward, &row.backward, &row.optimizer, &row.send, &row.wait_activation, &row.wait_gradient}) {
      accounted += *part->predicted;
    }
    accounted += row.idle.predicted.value_or(Seconds{});
  }
  CHECK(accounted.value == Approx(report.step.predicted->value));
  // Stage 1 waits for the first activation of all; stage 3's gradients come from the loss.
  CHECK(report.stage_rows[1].wait_activation.predicted->value > 0);
  CHECK(report.stage_rows[3].wait_gradient.predicted->value == 0);
}

TEST_CASE("what was not measured is absent, and no figure is made of it", "[report]") {
  const auto nulls = [](const Json& json) {
    int count = 0;
    const Json flat = json.flatten();
    for (const Json& value : flat) count += value.is_null() ? 1 : 0;
    return count;
  };
  HandMade made;
  CHECK(nulls(json::write(made.report())) == 0);
  SECTION("no timeline") {
    const RunReport report = made.report_of("1f1b", 2, 2);
    CHECK_FALSE(report.bubble);
    CHECK(report.step.measured);
    for (const StageRow& row : report.stage_rows) {
      const Json json = json::write(row);
      for (const char* part :
           {"forward", "backward", "optimizer", "send", "wait_activation", "wait_gradient", "idle"}) {
        INFO(part);
        CHECK(json[part]["measured_ms"].is_null());
      }
      for (const char* part : {"receive_ms", "wait_loss_ms", "collective_ms", "other_ms"}) {
        INFO(part);
        CHECK(json[part].is_null());
      }
      CHECK_FALSE(row.forward.error());
    }
    CHECK(test::says(report_text(report), "there is no timeline"));
    CHECK_FALSE(test::says(report_text(report), "nan"));
  }
  SECTION("one rank's events only") {
    const RunReport report = made.without_rank(1);
    CHECK_FALSE(report.bubble);
    CHECK(report.stage_rows[0].forward.measured);
    CHECK_FALSE(report.stage_rows[1].forward.measured);
    CHECK_FALSE(report.stage_rows[1].idle.measured);
  }
  SECTION("no step") {
    const RunReport report = made.without_steps();
    CHECK_FALSE(report.step.measured);
    CHECK_FALSE(report.step_p99);
    CHECK_FALSE(report.samples_per_second);
    CHECK_FALSE(report.step.error());
    CHECK_FALSE(test::says(report_text(report), "samples/s"));
  }
  SECTION("no memory") {
    const RunReport report = made.without_memory();
    REQUIRE(report.memory.size() == 2);
    CHECK_FALSE(report.memory[0].measured);
    CHECK(report.memory[0].proved);
  }
}

TEST_CASE("a report says who stopped the run, whatever its summary has", "[report]") {
  HandMade made;
  CHECK_FALSE(test::says(report_text(made.stopped_by(0)), "stopped"));
  CHECK(test::says(report_text(made.stopped_by(15)), "the run was stopped by TERM after step"));
  CHECK(test::says(report_text(made.stopped_by(-7)), "the run was stopped by a signal"));
}

TEST_CASE("a report of GPUs has their memory beside the proof", "[report]") {
  HandMade made;
  CHECK_FALSE(test::says(report_text(made.report()), "card used"));
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  const CardUse card{.reserved = Bytes{200 * kMiB},
                     .used = Bytes{300 * kMiB},
                     .total = Bytes{4096 * kMiB},
                     .needed = Bytes{250 * kMiB}};
  const std::string text = report_text(made.on_cards({card, card}));
  INFO(text);
  for (const char* part :
       {"needed", "reserved", "card used", "250.0 MiB", "200.0 MiB", "300.0 MiB", "4.0 GiB"})
    CHECK(test::says(text, part));
}

}  // namespace stagecraft
