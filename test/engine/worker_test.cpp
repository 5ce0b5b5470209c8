#include "engine/core/worker.h"

#include "base/error.h"
#include "models/data/synthetic.h"
#include "models/tensors/counting_allocator.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "test/engine/delays.h"
#include "test/engine/pipeline_case.h"
#include "test/support/built_in.h"
#include "test/support/catch.h"
#include "test/support/ranks.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <set>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a stage that only reshapes does not send its own receive slot", "[worker]") {
  const Setting convnet({.model = ModelKind::convnet});
  int flatten = 0;
  while (convnet.model.layers[static_cast<std::size_t>(flatten)]->facts().type != "flatten") ++flatten;
  for (const char* schedule : {"fill_drain", "pipedream"}) {
    CHECK(run_locally({.schedule = schedule,
                       .stages = 3,
                       .cuts = {flatten, flatten + 1},
                       .model = ModelKind::convnet}) == "");
  }
}

TEST_CASE("a run continues from states of layers to the bit, at another number of stages", "[worker]") {
  constexpr std::int64_t kCut = 3;
  const Setting before({.schedule = "1f1b", .stages = 2, .model = ModelKind::convnet, .dropout = true});
  const Setting after({.schedule = "fill_drain", .stages = 3, .model = ModelKind::convnet, .dropout = true});
  std::map<int, LayerState> saved;
  std::mutex mutex;
  const auto run = [](const Setting& setting, Transport& transport, std::int64_t first, std::int64_t last,
                      const std::function<void(Worker&)>& start, const std::function<void(Worker&)>& end) {
    Worker worker(setting.model, *setting.loss, *setting.data, setting.stage_layers, setting.placement,
                  transport, setting.options);
    start(worker);
    RunShape shape = setting.shape;
    shape.first_step = first;
    shape.validation_samples = 0;
    SegmentWalk walk(shape);
    for (Segment segment; walk.next(segment) && segment.first_step < last;) {
      const ScheduleProgram program =
          find_schedule(setting.pipeline.schedule)
              .generate({.placement = setting.placement, .group_sizes = segment.group_sizes});
      worker.run(rank_program(lower(program), transport.rank()), segment, nullptr);
    }
    end(worker);
  };
  run_ranks(2, {}, [&](Transport& transport) {
    run(
        before, transport, 0, kCut, [](Worker&) {},
        [&](Worker& worker) {
          const std::lock_guard lock(mutex);
          for (const int layer : worker.layers()) saved[layer] = worker.state(layer);
        });
  });
  REQUIRE(saved.size() == before.model.layers.size());
  Outcome outcome;
  run_ranks(3, {}, [&](Transport& transport) {
    run(
        after, transport, kCut, after.shape.steps,
        [&](Worker& worker) {
          for (const int layer : worker.layers()) worker.set_state(layer, saved.at(layer));
        },
        [&](Worker& worker) {
          const std::lock_guard lock(mutex);
          for (const int layer : worker.layers()) outcome.state[layer] = worker.state(layer);
        });
  });
  const OracleResult& oracle = oracle_of(after);
  for (const auto& [layer, state] : outcome.state) {
    for (std::size_t i = 0; i < state.parameters.size(); ++i) {
      CHECK(at::equal(state.parameters[i], oracle.parameters[layer][i]));
    }
    for (std::size_t i = 0; i < state.buffers.size(); ++i) {
      CHECK(at::equal(state.buffers[i], oracle.buffers[layer][i]));
    }
  }
}

namespace {

/// A stage on `replicas` replicas, whose larger layers' gradients do not fit into one message.
Setting wide(int replicas) {
  Setting setting({.stages = 1, .widths = {replicas}, .shape = BatchShape::many, .clipping = 0.05});
  setting.model = build_model({MlpConfig{.hidden = {300, 300, 600, 300}}}, setting.data->sample(), at::kFloat,
                              {"test", "/model"});
  setting.stage_layers = {{0, static_cast<int>(setting.model.layers.size())}};
  setting.make_optimizer();
  return setting;
}

/// Notes when sums over replicas send, and when layers are through.
class Listener final : public DelayedTransport {
 public:
  Listener(Transport& inner, std::string& heard) : DelayedTransport(inner, 1), heard_(heard) {}
  [[nodiscard]] RequestPtr post_send(Rank to, const Tag& tag, const at::Tensor& tensor) override {
    heard_ += 's';
    return DelayedTransport::post_send(to, tag, tensor);
  }
  void progress() override {
    heard_ += '.';
    DelayedTransport::progress();
  }

 private:
  std::string& heard_;
};

}  // namespace

TEST_CASE("replicas' gradients of many messages add up as the oracle's", "[worker]") {
  const int replicas = GENERATE(2, 3);
  const Setting setting = wide(replicas);
  const OracleResult oracle = run_oracle(setting.model, *setting.loss, *setting.data, setting.oracle);
  std::vector<std::string> differences(static_cast<std::size_t>(replicas));
  run_ranks(replicas, {.timeout = Seconds{60}, .synchronous_sends = true}, [&](Transport& transport) {
    differences[transport.rank().index()] =
        difference(run_rank(setting, transport), oracle, transport.rank().value == 0);
  });
  for (const std::string& text : differences) CHECK(text == "");
}

TEST_CASE("a layer's gradients leave before the layers below it are through", "[worker]") {
  const Setting setting = wide(2);
  std::vector<std::string> heard(2);
  run_ranks(2, {.timeout = Seconds{60}}, [&](Transport& transport) {
    Listener listener(transport, heard[transport.rank().index()]);
    Worker worker(setting.model, *setting.loss, *setting.data, setting.stage_layers, setting.placement,
                  listener, setting.options);
    const Segment segment{.group_sizes = {2}, .micro_batches = {{0, 0, 2}, {0, 2, 2}}};
    worker.run(rank_program(lower(program_of(setting, segment)), transport.rank()), segment, nullptr);
  });
  const auto layers = setting.model.layers.size();
  for (const std::string& log : heard) {
    INFO(log);
    // After all layers forward: of the backward the last large layer's gradients leave, and others follow.
    const std::size_t first = log.find('s');
    REQUIRE(first != std::string::npos);
    const auto through = static_cast<std::size_t>(std::count(log.begin(), log.begin() + first, '.'));
    CHECK(through > layers);
    CHECK(through < 2 * layers - 3);
  }
}

TEST_CASE("a plan of PipeDream's, fifteen replicas before one, equals the oracle", "[worker]") {
  Setting setting({.schedule = "pipedream", .stages = 2, .widths = {15, 1}, .shape = BatchShape::many});
  SyntheticDataConfig data;
  data.samples = 90;
  data.validation_samples = 10;
  data.classes = 5;
  data.shape = {6};
  setting.data = open_dataset({.source = data}, {"test", "/data"});
  setting.shape.samples = data.samples;
  setting.shape.batch = setting.oracle.batch = 45;
  setting.shape.micro_batch = setting.oracle.micro_batch = setting.options.micro_batch_size = 3;
  const OracleResult oracle = run_oracle(setting.model, *setting.loss, *setting.data, setting.oracle);
  std::vector<std::string> differences(16);
  run_ranks(16, {.timeout = Seconds{60}, .synchronous_sends = true}, [&](Transport& transport) {
    differences[transport.rank().index()] =
        difference(run_rank(setting, transport), oracle, transport.rank().value == 0);
  });
  for (const std::string& text : differences) CHECK(text == "");
}

TEST_CASE("a worker refuses states and plans that do not fit", "[worker]") {
  const Setting setting({.stages = 1});
  const auto with = [&](const std::vector<std::vector<Rank>>& ranks,
                        const std::function<void(Worker&)>& body) {
    return message_of([&] {
      run_ranks(1, {}, [&](Transport& transport) {
        Worker worker(setting.model, *setting.loss, *setting.data, setting.stage_layers, Placement{ranks},
                      transport, setting.options);
        body(worker);
      });
    });
  };
  CHECK(contains(with({{Rank{0}, Rank{1}}}, [](Worker&) {}), "the plan is for 2 ranks, there are 1"));
  CHECK(contains(with({{Rank{1}}}, [](Worker&) {}), "the plan is for 2 ranks, there are 1"));
  CHECK(contains(with({{Rank{0}}},
                      [](Worker& worker) {
                        LayerState state = worker.state(0);
                        state.parameters[0] = at::zeros({2, 2});
                        worker.set_state(0, state);
                      }),
                 "the state [2, 2]"));
  CHECK(contains(with({{Rank{0}}},
                      [](Worker& worker) {
                        LayerState state = worker.state(0);
                        state.optimizer.tensors = {{{"exp_avg", at::zeros({1})}}, {}};
                        worker.set_state(0, state);
                      }),
                 "exp_avg"));
}

TEST_CASE("an error inside an action names rank, step and action", "[worker]") {
  const std::string text = message_of([] {
    (void)run_locally({.stages = 2}, {.program = [](LoweredProgram& program) {
                        std::erase_if(program.ranks[1], [](const Action& action) {
                          return action.op == Op::load && action.micro_batch == MicroBatch{2};
                        });
                      }});
  });
  INFO(text);
  // Rank 0 hears of it; its message quotes rank 1's.
  CHECK(contains(text, "rank 1"));
  CHECK(contains(text, "step 1"));
  CHECK(contains(text, "forward of micro-batch 2 on stage 1"));
}

TEST_CASE("events of the last steps are kept, in order", "[worker]") {
  const Setting setting({.stages = 2});  // records 3 of 7 steps
  std::vector<Outcome> outcomes(2);
  run_ranks(2, {},
            [&](Transport& transport) { outcomes[transport.rank().index()] = run_rank(setting, transport); });
  for (int rank = 0; rank < 2; ++rank) {
    std::map<std::int64_t, int> forwards;  // by step, of training
    Seconds last{0};
    for (const Event& event : outcomes[static_cast<std::size_t>(rank)].events) {
      CHECK(event.rank == Rank{rank});
      CHECK(event.begin >= last);
      CHECK(event.end >= event.begin);
      last = event.end;
      if (event.action.op == Op::backward) ++forwards[event.step];
    }
    REQUIRE_FALSE(forwards.empty());
    CHECK(forwards.rbegin()->first == 6);
    for (const auto& [step, count] : forwards) {
      CHECK(step >= 4);
      CHECK(count == 4);  // micro-batches
    }
  }
}

TEST_CASE("events tell when sums over replicas are under way, and of how many bytes", "[worker]") {
  const Setting setting({.stages = 1, .widths = {2}, .shape = BatchShape::many});
  std::vector<Outcome> outcomes(2);
  run_ranks(2, {},
            [&](Transport& transport) { outcomes[transport.rank().index()] = run_rank(setting, transport); });
  std::int64_t bytes = 0;
  for (const LayerPtr& layer : setting.model.layers) {
    for (const ParameterSpec& spec : layer->parameters()) bytes += 4 * c10::multiply_integers(spec.shape);
  }
  for (const Outcome& outcome : outcomes) {
    std::map<std::int64_t, Bytes> summed;            // by step
    std::map<std::int64_t, Seconds> first, reduced;  // backward's begin, reduce's end
    for (const Event& event : outcome.events) {
      if (event.lane == Event::Lane::compute) {
        if (event.action.op == Op::backward) first.try_emplace(event.step, event.begin);
        if (event.action.op == Op::reduce) reduced[event.step] = event.end;
      }
    }
    for (const Event& event : outcome.events) {
      if (event.lane == Event::Lane::compute) continue;
      CHECK(event.action.op == Op::reduce);
      CHECK(event.action.stage == StageId{0});
      CHECK(event.bytes > Bytes{});
      CHECK(event.begin >= first.at(event.step));
      CHECK(event.end <= reduced.at(event.step));
      summed[event.step] += event.bytes;
    }
    CHECK(summed.size() == reduced.size());
    for (const auto& [step, sum] : summed) CHECK(sum.value == bytes);
  }
}

TEST_CASE("memory is what the program keeps, and does not grow", "[worker]") {
  install_counting_allocator();
  const auto peak = [](const char* schedule, std::int64_t steps) {
    Setting setting({.schedule = schedule, .stages = 2, .shape = BatchShape::even});
    setting.model = build_model({MlpConfig{.hidden = {64, 64, 64, 64}}}, setting.data->sample(), at::kFloat,
                                {"test", "/model"});
    setting.make_optimizer();
    const int layers = static_cast<int>(setting.model.layers.size());
    setting.stage_layers = {{0, layers / 2}, {layers / 2, layers}};
    setting.shape.batch = 32;
    setting.shape.micro_batch = 2;
    setting.options.micro_batch_size = 2;
    setting.shape.samples = 32;
    setting.shape.steps = steps;
    SyntheticDataConfig data;
    data.samples = 32;
    data.shape = {6};
    data.classes = 5;
    setting.data = open_dataset({.source = data}, {"test", "/data"});
    Bytes most{0};
    run_ranks(2, {}, [&](Transport& transport) {
      Worker worker(setting.model, *setting.loss, *setting.data, setting.stage_layers, setting.placement,
                    transport, setting.options);
      SegmentWalk walk(setting.shape);
      for (Segment segment; walk.next(segment);) {
        if (segment.kind == SegmentKind::validate) continue;
        const ScheduleProgram program = find_schedule(schedule).generate(
            {.placement = setting.placement, .group_sizes = segment.group_sizes});
        worker.run(rank_program(lower(program), transport.rank()), segment, nullptr);
      }
      if (transport.rank().value == 0) most = worker.peak_bytes();
    });
    return most.value;
  };
  const std::int64_t drained = peak("fill_drain", 2);
  const std::int64_t flushed = peak("1f1b", 2);
  // Sixteen micro-batches in flight against two.
  CHECK(drained > flushed + 10 * 2 * 64 * 4);
  CHECK(peak("1f1b", 6) <= flushed + 1024);  // reading ahead may be a batch further
}
