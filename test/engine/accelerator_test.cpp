// The engine on a device that is not the CPU, without one: ATen's side is test/support/fake_accelerator.h,
// streams and NCCL are test/support/fake_device.h. Runs equal the oracle on the same device to the bit, every
// tensor is where it belongs, and the host waits where it must and nowhere else.

#include "engine/core/loss_sum.h"
#include "engine/core/recorder.h"
#include "models/layers/dropout_masks.h"
#include "schedules/lowering/lowering.h"
#include "test/engine/on_devices.h"
#include "test/support/catch.h"
#include "test/support/demand.h"
#include "test/support/full.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

/// What the host of each rank waited for in one training segment behind another one.
std::vector<std::int64_t> waits_of_a_segment(const Setting& setting, const Wrap& wrap) {
  std::vector<std::int64_t> waits(static_cast<std::size_t>(setting.placement.world()));
  run_on_devices(setting.placement.world(), wrap, [&](Transport& transport) {
    Worker worker(setting.model, *setting.loss, *setting.data, setting.stage_layers, setting.placement,
                  transport, setting.options);
    SegmentWalk walk(setting.shape);
    Segment segment;
    demand(walk.next(segment), "a segment");
    const RankProgramPtr program = rank_program(lower(program_of(setting, segment)), transport.rank());
    worker.run(program, segment, nullptr);
    const std::int64_t before = host_waits();
    worker.run(program, segment, nullptr);
    waits[transport.rank().index()] = host_waits() - before;
  });
  return waits;
}

/// Its other ranks die when they are told to, and are missed after a while.
class SilentPeer final : public DelayedTransport {
 public:
  explicit SilentPeer(Transport& inner) : DelayedTransport(inner, 1) {}
  void peer_dies() { patience_ = 5000; }
  void progress() override {
    if (patience_ > 0 && --patience_ == 0) {
      patience_ = 1;
      throw PeerError("rank 1 does not answer");
    }
    DelayedTransport::progress();
  }

 private:
  int patience_ = 0;
};

struct Sticking {
  Sticking() { let_device_stick(true); }
  ~Sticking() { let_device_stick(false); }
  Sticking(const Sticking&) = delete;
  Sticking& operator=(const Sticking&) = delete;
};

}  // namespace

TEST_CASE("a timeline tells milliseconds apart after days", "[accelerator]") {
  Recorder recorder(Rank{0}, /*steps=*/2, fake_accelerator());
  constexpr double kHour = 3.6e6;
  constexpr int kSteps = 100;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    for (int k = 0; k < 3; ++k) {
      Recorder::Mark begin = recorder.mark();
      recorder.record(Action{}, step, std::move(begin), recorder.mark());
    }
    let_device_time_pass(kHour);
  }
  const std::vector<Event>& events = recorder.events();
  REQUIRE(events.size() == 6);
  for (const Event& event : events) CHECK((event.end - event.begin).value == Approx(1e-3).epsilon(1e-6));
  CHECK(events.front().begin.value == Approx((kSteps - 2) * kHour / 1000).epsilon(1e-5));
}

TEST_CASE("an action of an old step that comes after all was told is left out", "[accelerator]") {
  Recorder recorder(Rank{0}, /*steps=*/2, fake_accelerator());
  const auto record = [&](std::int64_t step) {
    Recorder::Mark begin = recorder.mark();
    recorder.record(Action{}, step, std::move(begin), recorder.mark());
  };
  record(9);
  CHECK(recorder.events().size() == 1);
  record(5);
  record(10);
  CHECK(recorder.events().size() == 2);
}

TEST_CASE("what a device moved is told by its clock, and what overlaps as one", "[accelerator]") {
  using Span = ReplicaSum::Span;
  Recorder recorder(Rank{0}, /*steps=*/1, fake_accelerator());
  let_device_time_pass(1e3);
  for (std::int64_t step = 0; step < 2; ++step) {
    Recorder::Mark begin = recorder.mark();
    let_device_time_pass(50);
    recorder.record_spans({.op = Op::reduce}, step, [step]() -> std::vector<Span> {
      demand(step == 1, "an old sum is asked for");
      return {{Seconds{-0.010}, Seconds{-0.004}, Bytes{4}},
              {Seconds{-0.045}, Seconds{-0.030}, Bytes{1}},
              {Seconds{-0.031}, Seconds{-0.020}, Bytes{2}}};
    });
    recorder.record({.op = Op::reduce}, step, std::move(begin), recorder.mark());
  }
  const std::vector<Event>& events = recorder.events();
  REQUIRE(events.size() == 3);
  const double finished = events[0].end.value;
  const auto is_told = [&](const Event& event, double begin, double end, std::int64_t bytes) {
    return event.lane == Event::Lane::send && event.step == 1 && event.bytes == Bytes{bytes} &&
           event.begin.value == Approx(finished + begin).margin(2e-3) &&
           event.end.value == Approx(finished + end).margin(2e-3);
  };
  CHECK(events[0].lane == Event::Lane::compute);
  CHECK(is_told(events[1], -0.045, -0.020, 3));
  CHECK(is_told(events[2], -0.010, -0.004, 4));
}

TEST_CASE("the fake accelerator takes no tensor of the CPU's, and counts who waits", "[accelerator]") {
  const c10::InferenceMode no_autograd;
  const at::Device device = fake_accelerator();
  const at::Tensor host = at::arange(6, at::kFloat).view({2, 3}), here = host.to(device);
  CHECK(here.device() == device);
  CHECK_THROWS(here.add(host));
  CHECK_NOTHROW(here.mul(at::scalar_tensor(2.0)));
  std::int64_t waits = host_waits();
  const at::Tensor sum = here.add(here).t().contiguous().sum(0);
  const at::Tensor copy = at::empty({2}, at::kFloat);
  copy.copy_(sum, /*non_blocking=*/true);
  CHECK(host_waits() == waits);
  CHECK(at::equal(copy, at::tensor({6.0F, 24.0F})));
  CHECK(sum[0].item<float>() == 6);
  CHECK(host_waits() == ++waits);
  CHECK(at::equal(sum.cpu(), copy));
  CHECK(host_waits() == ++waits);
}

TEST_CASE("a device draws the CPU's dropout masks", "[accelerator]") {
  const c10::InferenceMode no_autograd;
  const Dropout dropout(0.3, /*stream=*/5);
  const RandomKey key{.seed = 0x123456789ABCDEF, .layer = 7, .step = 0xFFFFFFFF, .micro_batch = 3};
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{1}, {127}, {128}, {2, 129}, {3, 5, 70}, {0, 4}}) {
    const std::int64_t before = host_waits();
    const at::Tensor mask = dropout.mask(shape, key, fake_accelerator());
    CHECK(host_waits() == before);
    CHECK(mask.device() == fake_accelerator());
    CHECK(at::equal(mask.cpu(), dropout.mask(shape, key)));
  }
}

TEST_CASE("numbers arrive late, and whoever reads too early waits", "[accelerator]") {
  const c10::InferenceMode no_autograd;
  LossSum sum(2, fake_accelerator());
  const auto number = [](double value) { return at::full({}, value, at::kDouble).to(fake_accelerator()); };
  sum.add({number(1.5), number(2)});
  sum.add({number(0.25), {}});
  const std::int64_t before = host_waits();
  const AsyncScalars early(sum.values());
  CHECK_FALSE(early.arrived());
  sum.add(sum.values());  // what is on its way stays what it was
  const AsyncScalars late(sum.values());
  CHECK(early.arrived());
  CHECK(host_waits() == before);
  CHECK(early[0] == 1.75);
  CHECK(early[1] == 2);
  int meanwhile = 0;
  late.await([&] { ++meanwhile; });
  CHECK(late[0] == 3.5);
  CHECK(host_waits() == before + 1);
  CHECK(meanwhile > 0);
}

TEST_CASE("a host that waits for its device hears what has happened to the rank it waits for",
          "[accelerator]") {
  // By the norm, by the loss of the step before, and at the end of a segment.
  for (const bool norm : {true, false}) {
    PipelineCase pipeline{.schedule = norm ? "1f1b" : "pipedream", .stages = 1};
    if (norm) pipeline.clipping = 0.05;
    const Setting setting(on_device(pipeline));
    run_ranks(1, {}, [&](Transport& local) {
      SilentPeer transport(local);
      Worker worker(setting.model, *setting.loss, *setting.data, setting.stage_layers, setting.placement,
                    transport, setting.options);
      SegmentWalk walk(setting.shape);
      Segment segment;
      demand(walk.next(segment), "a segment");
      const RankProgramPtr program = rank_program(lower(program_of(setting, segment)), transport.rank());
      const auto report = [](const StepReport&) {};
      worker.run(program, segment, report);
      worker.settle();
      const Sticking sticks;
      transport.peer_dies();
      const auto go_on = [&] {
        for (int k = 0; k < 2; ++k) worker.run(program, segment, report);
      };
      const auto misses_peer = [](const auto& does) {
        try {
          does();
        } catch (const PeerError&) {
          return true;
        }
        return false;
      };
      demand(misses_peer(go_on), "training misses the peer");
      demand(misses_peer([&] { worker.settle(); }), "and so does settling");
    });
  }
}

TEST_CASE("runs on a device equal the oracle there to the bit", "[accelerator]") {
  int runs = 0;
  for (const PipelineCase& pipeline : covering(Cover::values, std::vector{1, 2, 3, 4})) {
    const Setting setting(on_device(pipeline));
    INFO(setting.pipeline.name());
    try {
      CHECK(run_and_compare(setting, over_nccl(setting)) == "");
    } catch (const RefusedError&) {
      continue;  // NCCL cannot carry it: nccl_transport_test.cpp counts these
    }
    // By the hosts in turn, or in both ways.
    if (full() || runs % 2 == 0) CHECK(run_and_compare(setting, staged) == "");
    if (full() || runs % 2 == 1) CHECK(run_and_compare(setting, direct) == "");
    ++runs;
  }
  std::cout << fmt::format("{} runs on a device compared with the oracle there\n", runs);
  CHECK(runs > 20);
}

TEST_CASE("in a steady step the host waits for a norm that it must know, and for nothing else",
          "[accelerator]") {
  using Waits = std::vector<std::int64_t>;
  const auto waits = [](const Setting& setting) { return waits_of_a_segment(setting, over_nccl(setting)); };
  // Stages of a rank each, and of replicas, whose sums the host only launches and whose first one has the
  // norm.
  for (const auto& [widths, norms] :
       {std::pair<std::vector<int>, Waits>{{}, {2, 2, 2}}, {{2, 1}, {2, 1, 2}}, {{3}, {2, 1, 1}}}) {
    for (const ModelKind model : {ModelKind::mlp, ModelKind::convnet, ModelKind::gpt}) {
      PipelineCase pipeline{.schedule = "pipedream",
                            .stages = widths.empty() ? 3 : static_cast<int>(widths.size()),
                            .widths = widths,
                            .model = model,
                            .optimizer = CaseOptimizer::adamw,
                            .dropout = true};
      const Setting asynchronous(on_device(pipeline));
      INFO(asynchronous.pipeline.name());
      CHECK((waits(asynchronous) == Waits{0, 0, 0}));
      pipeline.schedule = "1f1b";
      const Setting synchronous(on_device(pipeline));
      CHECK((waits(synchronous) == Waits{0, 0, 0}));
      pipeline.clipping = 0.05;
      Setting clipped(on_device(pipeline));
      CHECK((waits(clipped) == Waits{0, 0, 0}));
      // Without a sum between the devices the hosts exchange what each first replica has, and ask for the norm of all.
      CHECK((waits_of_a_segment(clipped, staged) == norms));
      clipped.options.gradient_clipping = 0;  // the norm alone
      CHECK((waits(clipped) == Waits{0, 0, 0}));
    }
  }
  // One rank has the whole norm, and its device applies it; the host must know whether a step is skipped.
  PipelineCase alone{.schedule = "1f1b", .stages = 1, .model = ModelKind::gpt, .clipping = 0.05};
  Setting clipped(on_device(alone));
  CHECK((waits(clipped) == Waits{0}));
  clipped.options.on_overflow = OnOverflow::skip;
  CHECK((waits(clipped) == Waits{2}));
  alone.precision = PrecisionKind::fp16;
  CHECK((waits(Setting(on_device(alone))) == Waits{2}));
}
